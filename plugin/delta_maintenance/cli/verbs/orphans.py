"""`orphans`: tables in a store that belong to no catalog and no policy."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

from delta_maintenance.cli.arguments import Verbs, add_verb
from delta_maintenance.cli.output import print_json, say
from delta_maintenance.cli.run_report import report_failures
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.operations.core.facts import count_text, instant_text, size_text
from delta_maintenance.policies.promises.for_operation import rule_options_over

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delta_maintenance.policies.orphans import Orphan, Orphans


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "orphans",
        purpose="policy",
        summary="find tables that no catalog and no policy names",
        description=(
            "Search folders for tables that neither a catalog of the policy nor the policy itself "
            "names, with their bytes and the time of their last commit. Tables with files that a "
            "known table uses are listed apart. Reads only, and deletes nothing."
        ),
        json_help="print one JSON document",
        example="orphans delta_maintenance.yaml --under s3://lake",
    )
    parser.add_argument("config", metavar="CONFIG", help="the policy, a YAML file")
    parser.add_argument(
        "--under",
        metavar="URI",
        action="append",
        required=True,
        help="search this folder, at any depth; repeatable",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write the report as a page, to this local file"
    )
    # Errors do not refer to a table on the command line.
    parser.set_defaults(table=None, run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the report."""
    from delta_maintenance.policies.definition.policy import load_policy
    from delta_maintenance.policies.orphans import find_orphans

    orphans = find_orphans(
        load_policy(arguments.config),
        arguments.under,
        storage_options=rule_options_over(dict(arguments.storage_options)),
    )
    if arguments.html is not None:
        _write_page(arguments.html, orphans)
    if arguments.json:
        print_json(document(orphans))
    else:
        for orphan in orphans.orphans:
            print(printable(orphan.uri))
            for line in facts(orphan, orphans):
                print(f"    {printable(line)}")
        for referenced in orphans.referenced:
            say(f"{referenced.uri} is no orphan: {', '.join(referenced.by)} uses files of it")
        say(summary(orphans))
    return report_failures(
        (failure.where, "", str(failure.error), failure.error.exit_status)
        for failure in orphans.failures
    )


def document(orphans: Orphans) -> dict[str, object]:
    """The report as JSON."""
    return {
        "under": orphans.under,
        "assessed_at": instant_text(orphans.assessed_at),
        "complete": not orphans.failures,
        "size": orphans.size,
        "known": orphans.known,
        "excluded": orphans.excluded,
        "orphans": [
            {
                "uri": orphan.uri,
                "size": orphan.size,
                "files": orphan.files,
                "version": orphan.version,
                "last_commit": instant_text(orphan.last_commit),
                "contains": orphan.contains,
                "problem": orphan.problem,
            }
            for orphan in orphans.orphans
        ],
        "referenced": [{"uri": table.uri, "by": table.by} for table in orphans.referenced],
        "failures": [
            {
                "where": failure.where,
                "problem": str(failure.error),
                "exit_status": failure.error.exit_status,
            }
            for failure in orphans.failures
        ],
    }


def facts(orphan: Orphan, orphans: Orphans) -> Iterator[str]:
    """What the report says of a table, for people, in lines of less than 76 characters where names
    permit it.
    """
    if orphan.problem is not None:
        yield orphan.problem
        return
    size = size_text(orphan.size or 0)
    version = "no version" if orphan.version is None else f"version {orphan.version:,}"
    yield f"{size} in {count_text(orphan.files or 0, 'file')}, {version}"
    if orphan.last_commit is not None:
        age = count_text((orphans.assessed_at - orphan.last_commit).days, "day")
        yield f"last commit {orphan.last_commit:%Y-%m-%d}, {age} ago"
    for name in orphan.contains:
        yield f"contains {name}, which is in use"


def summary(orphans: Orphans) -> str:
    """The totals, for people."""
    doubt = "" if not orphans.failures else ", and perhaps fewer: the search is not complete"
    return (
        f"{count_text(len(orphans.orphans), 'table')} that nobody names, {size_text(orphans.size)}"
        f"{doubt}; {orphans.known:,} known, {orphans.excluded:,} excluded, "
        f"{len(orphans.referenced):,} with files in use"
    )


def _write_page(path: str, orphans: Orphans) -> None:

    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(page(orphans))
    except OSError as error:
        raise InvalidRequestError(
            f"the page cannot be written: {error.strerror}",
            file=path,
            remedy="name a file in a folder that exists",
        ) from None


def page(orphans: Orphans) -> str:
    """Returns the document."""
    places = ", ".join(map(_text, orphans.under))
    html = [
        f"<h1>Tables that nobody names</h1><p>Under {places}, at {orphans.assessed_at:%F %R} UTC: "
        f"{_text(summary(orphans))}.</p>"
    ]
    if orphans.failures:
        failures = [
            f"<b>{_text(failure.where)}</b>: {_text(failure.error)}" for failure in orphans.failures
        ]
        html.append(
            "<h2>Not searched</h2><p>Tables of these parts can be among those below.</p>"
            + _list(failures)
        )
    if orphans.orphans:
        rows = "".join(map("".join, (_row(orphan, orphans) for orphan in orphans.orphans)))
        heads = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        html.append(f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>")
    if orphans.referenced:
        used = [
            f"<b>{_text(table.uri)}</b>: used by {', '.join(map(_text, table.by))}"
            for table in orphans.referenced
        ]
        html.append("<h2>Unknown, with files that known tables use</h2>" + _list(used))
    return f"{_HEAD}<body>{''.join(html)}</body></html>\n"


def _row(orphan: Orphan, orphans: Orphans) -> Iterator[str]:
    notes = [f"contains {_text(name)}, which is in use" for name in orphan.contains]
    if orphan.problem is not None:
        notes.append(_text(orphan.problem))
    last_commit = orphan.last_commit
    yield f"<tr><td>{'<br>'.join([_text(orphan.uri), *notes])}</td>"
    cells = (
        "" if orphan.size is None else size_text(orphan.size),
        "" if orphan.files is None else f"{orphan.files:,}",
        "" if orphan.version is None else f"{orphan.version:,}",
        "" if last_commit is None else f"{last_commit:%Y-%m-%d}",
        "" if last_commit is None else count_text((orphans.assessed_at - last_commit).days, "day"),
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
