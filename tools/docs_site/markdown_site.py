"""The Markdown version of the site: each page beside its HTML, and the index `llms.txt`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Nav = Sequence[Mapping[str, Any]]


def entries(nav: Nav) -> Iterator[tuple[str, str, str]]:
    """Section, title and page of every entry of a navigation, in its order."""
    for entry in nav:
        for title, target in entry.items():
            if isinstance(target, str):
                yield "", title, target
            else:
                for _, inner, page in entries(target):
                    yield title, inner, page


def write(site: Path, *, name: str, description: str, nav: Nav, pages: Mapping[str, str]) -> None:
    """Writes `PAGE.md` for each page, `llms.txt`, and `llms-full.txt` with all of them."""
    for page, text in pages.items():
        path = site / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lines = [f"# {name}\n\n> {description}\n"]
    section = None
    for group, title, page in entries(nav):
        if group != section:
            lines.append(f"\n## {group}\n\n" if group else "\n")
            section = group
        lines.append(f"- [{title}]({page})\n")
    (site / "llms.txt").write_text("".join(lines))
    whole = [f"<!-- {page} -->\n\n{pages[page].strip()}\n" for _, _, page in entries(nav)]
    (site / "llms-full.txt").write_text("\n".join(whole))
