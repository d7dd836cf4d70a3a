"""`tables`: the tables of a policy, where each of them is known from, and which rules it has."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING

from delta_maintenance.cli.arguments import Verbs
from delta_maintenance.cli.output import print_json, say
from delta_maintenance.cli.policy_tables import PolicyTables, add_policy_verb
from delta_maintenance.cli.run_report import report_failures
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.policies.lanes import work_side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delta_maintenance.policies.definition.policy import PolicyTable


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_policy_verb(
        verbs,
        "tables",
        summary="the tables of a policy, their owners and rules",
        description=(
            "List the tables of a policy: the name, the address, which part of the policy applies, "
            "the owner and the tags; and what catalogs name besides, by number. Opens no table. A "
            "catalog or a pattern that cannot be listed does not hide the others."
        ),
        json_help="print one JSON document, with the merged rules of each table",
        example="tables delta_maintenance.yaml",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the tables."""
    tables = PolicyTables(arguments)
    discovery = tables.found
    properties = work_side_by_side(lambda table: _by_properties(tables, table), tables.tables)
    rows = list(zip(tables.tables, properties, strict=True))
    if arguments.json:
        print_json(
            {
                "tables": [_document(*row) for row in rows],
                "duplicates": [
                    {"name": duplicate.name, "kept": duplicate.kept, "uri": duplicate.uri}
                    for duplicate in discovery.duplicates
                ],
                "passed_over": {
                    where: {str(reason): count for reason, count in counts.items()}
                    for where, counts in discovery.passed_over.items()
                },
                "failures": [
                    {"where": part.name, "problem": part.problem, "exit_status": part.exit_status}
                    for part in tables.unlisted
                ],
            }
        )
    else:
        for row in rows:
            print("\n".join(_lines(*row)))
        for line in (*discovery.warnings(), *discovery.counts()):
            say(line)
        say(count_text(len(tables.tables), "table"))
    return report_failures(
        (part.name, part.uri, part.problem, part.exit_status) for part in tables.unlisted
    )


def _by_properties(tables: PolicyTables, table: PolicyTable) -> dict[str, str] | None:
    """The properties that added rules when the table was last assessed, by operation; None if that
    is not known."""
    if not table.rules.reads_properties:
        return {}
    entry = tables.entry_of(table.uri, table.name)
    if entry is None or entry.assessment.health is None:
        return None
    return {e.operation: e.rule_from for e in entry.assessment.operations if e.rule_from}


def _document(table: PolicyTable, by_properties: dict[str, str] | None) -> dict[str, object]:
    name = table.catalog_name
    name_text = str(name) if name is not None else None
    return {**table.to_json(), "catalog_name": name_text, "rules_from_properties": by_properties}


def _lines(table: PolicyTable, by_properties: dict[str, str] | None) -> Iterator[str]:
    """The name on a line of its own, because names and addresses are longer than columns."""
    yield printable(table.name)
    added = [f"{operation} by {name}" for operation, name in (by_properties or {}).items()]
    if by_properties is None:
        added = ["properties of the table"]
    facts = {
        "at": table.uri if table.uri != table.name else "",
        "rules": ", ".join([*(table.rules_from or ["defaults"]), *added]),
        "owner": table.owner or "",
        "tags": ", ".join(table.tags),
        "comment": table.comment or "",
    }
    for fact, value in facts.items():
        # Addresses are not broken, so that they can be copied.
        yield from textwrap.wrap(
            printable(value),
            80,
            initial_indent=f"    {fact:8}",
            subsequent_indent=" " * 12,
            break_long_words=False,
            break_on_hyphens=False,
        )
