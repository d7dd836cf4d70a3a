"""Tables of Markdown, as values."""

from __future__ import annotations


def markdown_rows(text: str) -> list[dict[str, str]]:
    """Returns the rows of the tables in a text, by the heads of their columns."""
    rows: list[dict[str, str]] = []
    columns: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells
        elif {*cells} != {"---"}:
            rows.append(dict(zip(columns, cells, strict=True)))
    return rows
