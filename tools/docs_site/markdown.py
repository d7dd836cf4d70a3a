"""Small pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold inline Markdown and line breaks."""
    lines = [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Inline code that contains no backtick; nothing for an empty text."""
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """A help text with a capital letter and a full stop, on one line."""
    text = " ".join(text.split())
    if not text:
        return ""
    # A name such as `lite` or a flag keeps its spelling.
    first = text.split(" ", 1)[0]
    if first.isalpha() and first.islower():
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
