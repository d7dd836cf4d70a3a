"""The report on orphans as a page that needs no other file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

from delta_maintenance.cli.output import count_text, printable, size_text
from delta_maintenance.cli.verbs.orphans import summary

if TYPE_CHECKING:
    from delta_maintenance.policies.orphans import Orphan, Orphans


def page(found: Orphans) -> str:
    """Returns the document."""
    places = ", ".join(map(_text, found.under))
    parts = [
        f"<h1>Tables that nobody names</h1><p>Under {places}, at {found.assessed_at:%F %R} UTC: "
        f"{_text(summary(found))}.</p>"
    ]
    if found.failures:
        failures = [f"<b>{_text(each.where)}</b>: {_text(each.error)}" for each in found.failures]
        parts.append(
            "<h2>Not searched</h2><p>Tables of these parts can be among those below.</p>"
            + _list(failures)
        )
    if found.orphans:
        rows = "".join(map("".join, (_row(each, found) for each in found.orphans)))
        heads = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        parts.append(f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>")
    if found.referenced:
        used = [
            f"<b>{_text(each.uri)}</b>: used by {', '.join(map(_text, each.by))}"
            for each in found.referenced
        ]
        parts.append("<h2>Unknown, with files that known tables use</h2>" + _list(used))
    return f"{_HEAD}<body>{''.join(parts)}</body></html>\n"


def _row(orphan: Orphan, found: Orphans) -> Iterator[str]:
    notes = [f"contains {_text(name)}, which is in use" for name in orphan.contains]
    if orphan.problem is not None:
        notes.append(_text(orphan.problem))
    last = orphan.last_commit
    yield f"<tr><td>{'<br>'.join([_text(orphan.uri), *notes])}</td>"
    cells = (
        "" if orphan.size is None else size_text(orphan.size),
        "" if orphan.files is None else f"{orphan.files:,}",
        "" if orphan.version is None else f"{orphan.version:,}",
        "" if last is None else f"{last:%Y-%m-%d}",
        "" if last is None else count_text((found.assessed_at - last).days, "day"),
    )
    for name, cell in zip(_COLUMNS[1:], cells, strict=True):
        yield f"<td class=n data-name='{name}'>{cell}</td>"
    yield "</tr>"


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _text(value: object) -> str:
    return escape(printable(str(value)))


_COLUMNS = ("Table", "Size", "Files", "Version", "Last commit", "Age")
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tables that nobody names</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .4rem .8rem; border-bottom: 1px solid #8886; }
th, .n { white-space: nowrap; }
td { vertical-align: top; }
.n { text-align: right; }
th:not(:first-child) { text-align: right; }
@media (max-width: 45rem) {
  thead, .n:empty { display: none; }
  tr { display: block; padding: .4rem 0; border-bottom: 1px solid #8886; }
  td { display: block; padding: 0; border: 0; }
  .n { text-align: left; }
  .n::before { content: attr(data-name) " "; opacity: .7; }
}
</style></head>"""
