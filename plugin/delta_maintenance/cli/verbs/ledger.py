"""`ledger`: what ran on the tables of a policy, what it brought and what it cost."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_verb
from delta_maintenance.cli.output import print_json, print_lines, print_named, say, warn
from delta_maintenance.cli.policy_tables import PolicyTables
from delta_maintenance.cli.run_report import report_failures
from delta_maintenance.errors import InvalidRequestError, NotADeltaTableError
from delta_maintenance.operations.core.facts import count_text, money_text, size_text
from delta_maintenance.policies.promises.for_operation import rule_options_over
from delta_maintenance.quantities import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import Any

    from delta_maintenance.ledger.summary import LedgerSum
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.policies.definition.policy import Policy

_GROUPS = ("table", "operation", "day", "owner")
_SHOWN = 50
_KEPT = {
    "later": " and freed by {:%F %R}",
    "never": ", which frees nothing",
    "unknown": ", maybe not freed",
}


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "ledger",
        purpose="policy",
        summary="what ran, what it brought and what it cost",
        description=(
            "Read the ledger that a policy names with `ledger:`, a Delta table with a row for each "
            "operation that ran: the newest operations, or sums by table, operation, day or owner."
        ),
        json_help="print one JSON document, a list",
        example="ledger policy.yaml --since '30 days' --by table",
    )
    parser.add_argument("config", metavar="CONFIG", help="the policy, a YAML file")
    parser.add_argument(
        "--since",
        metavar="DURATION",
        default="30 days",
        help="how far to look back, by default 30 days",
    )
    parser.add_argument("--by", choices=_GROUPS, help="sums for each of these")
    parser.add_argument(
        "--import",
        dest="imports",
        action="store_true",
        help="first add the maintenance by other engines that the logs of the tables show",
    )
    parser.set_defaults(run=run, table=None, names=[], state=None)


def run(arguments: argparse.Namespace) -> int:
    """Prints the newest operations, or the sums."""
    from delta_maintenance.ledger import summary
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.policies.definition.policy import load_policy
    from delta_maintenance.storage import open_store

    policy = load_policy(arguments.config)
    if policy.ledger is None:
        raise InvalidRequestError(
            "the policy names no ledger",
            file=arguments.config,
            remedy="add a line such as `ledger: s3://lake/_maintenance/ledger`",
        )
    now = clock.now()
    since = _since(arguments.since, now=now)
    options = rule_options_over(dict(arguments.storage_options))(
        policy.ledger.storage, policy.ledger.uri
    )
    ledger = LedgerTable(open_store(policy.ledger.uri, options))
    status = _import(ledger, policy, arguments) if arguments.imports else 0
    try:
        if arguments.by is None:
            rows = summary.newest(ledger, since=since, most=_SHOWN).to_pylist()
            _print_newest(rows, arguments)
        else:
            sums = summary.sums(ledger, since=since, by=arguments.by, now=now, prices=policy.prices)
            _print_sums(sums, arguments)
    except NotADeltaTableError as error:
        error.remedy = "run the policy once: the first run that does something creates the ledger"
        raise
    return status


def _since(length: str, *, now: datetime) -> datetime | None:
    """Returns the instant before which operations are left out; None before the first year."""
    try:
        return now - parse_duration(length)
    except OverflowError:
        return None


def _import(ledger: LedgerTable, policy: Policy, arguments: argparse.Namespace) -> int:
    """Imports the histories of all tables. A table that cannot be read hides no other."""
    from delta_maintenance.errors import failure_of
    from delta_maintenance.ledger.imports import import_history, imported_versions

    tables = PolicyTables(arguments, policy)
    warn(tables.found.warnings())
    failures = [(part.name, part.uri, part.problem, part.exit_status) for part in tables.unlisted]
    rows, imported = 0, imported_versions(ledger)
    for table in tables.tables:
        try:
            with tables.open(table) as opened:
                rows += import_history(ledger, opened, table, imported=imported)
        except Exception as error:
            failure = failure_of(error, where=table.name).locate(table=table.uri)
            failures.append((table.name, table.uri, str(failure), failure.exit_status))
    say(f"{count_text(rows, 'operation')} of other engines imported")
    return report_failures(failures)


def _print_newest(rows: Sequence[Mapping[str, Any]], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json([{name: _plain(value) for name, value in row.items()} for row in rows])
        return
    print_lines(
        ("when", "table", "operation", "outcome", "brought"),
        [
            (
                f"{row['started_at']:%F %R}" if row["started_at"] is not None else "",
                row["table_name"] or "",
                row["operation"] or "",
                row["outcome"] or "",
                ", ".join(_brought(row)) or row["error"] or _waits(row),
            )
            for row in rows
        ],
    )
    if len(rows) == _SHOWN:
        print(f"the newest {_SHOWN}; sums of all with --by")


def _waits(row: Mapping[str, Any]) -> str:
    """Until when an operation waits because of the budget, and why."""
    why = row["reason"] if row["outcome"] == "deferred" else None
    return (why or "").rpartition(", but deferred ")[2]


def _brought(row: Mapping[str, Any]) -> Iterator[str]:
    before, after = row["files_before"], row["files_after"]
    if before is not None and after is not None and after < before:
        yield f"{before:,} → {after:,} files"
    if row["bytes_deleted"]:
        at = row["freed_at"]
        freed = row["freed"] if row["freed"] != "later" or at is not None else "unknown"
        retained_text = _KEPT.get(freed, "").format(at)
        yield f"{size_text(row['bytes_deleted'])} deleted{retained_text}"
    before, after = row["replay_bytes_before"], row["replay_bytes_after"]
    if before is not None and after is not None and after < before:
        yield f"{size_text(before)} → {size_text(after)} to open"


def _print_sums(sums: Sequence[LedgerSum], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json([total.to_json() for total in sums])
        return
    currency = next((total.currency for total in sums if total.currency), None)
    money = () if currency is None else ("cost", "saves a month")
    units = ("ran", "failed", "merged", "deleted", "freed", "to open", "requests", "seconds")
    columns = (arguments.by, *units, *money)
    rows = [
        (
            total.group or "",
            f"{total.operations:,}",
            f"{total.failed:,}" if total.failed else "",
            count_text(total.files_merged, "file") if total.files_merged else "",
            size_text(total.bytes_deleted) if total.bytes_deleted else "",
            size_text(total.bytes_freed) if total.bytes_freed else "",
            f"-{size_text(total.replay_bytes_spared)}" if total.replay_bytes_spared else "",
            f"{total.requests:,}" if total.requests else "",
            f"{total.seconds:,.1f}",
            *(
                money_text(amount, currency) if amount and currency else ""
                for amount, _ in zip((total.cost, total.saves_a_month), money, strict=False)
            ),
        )
        for total in sums
    ]
    # Without those that nobody has counted, the rest fits a terminal more often.
    filled = [at for at in range(len(columns)) if not at or any(row[at] for row in rows)]
    show = print_named if sys.stdout.isatty() else print_lines
    show([columns[at] for at in filled], [[row[at] for at in filled] for row in rows])


def _plain(value: Any) -> Any:
    instant: datetime | None = value if hasattr(value, "isoformat") else None
    return value if instant is None else instant.isoformat()
