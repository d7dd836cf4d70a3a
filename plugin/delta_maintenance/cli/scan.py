"""The scan of `init`: the tables at some addresses, their state, and what a first run would do."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.address import Address, is_catalog_name
from delta_maintenance.cli.output import print_lines, print_table, warn
from delta_maintenance.cli.policy_tables import PolicyTables
from delta_maintenance.cli.run_report import report_failures, say_by_cause
from delta_maintenance.cli.starter_policy import UNSTATED, ScannedPlace, policy_for_places
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core.documents import printable
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.table.commit.other_writers import is_delta_spark

if TYPE_CHECKING:
    from delta_maintenance.policies.definition.policy import Policy, PolicyTable
    from delta_maintenance.policies.models import AssessedOperation, Assessment

_PARALLEL = 8
_SHOWN = 20
"""The number of tables that are listed; `assess` lists all of them."""
_COMMITS = 20
"""The newest commits of a table on S3 whose writers are read."""
_QUESTION = """\
Delta Spark writes {tables} on S3, such as
    {example}
It can overwrite commits of others. What holds for these tables?

  1  every Spark application has the log store of `spark-stage --log-store`
  2  Spark writes nothing while maintenance runs
  3  neither: commit after 10 minutes without commits, and verify each commit
  4  neither: block commits; checkpoint, clean-log, vacuum and fsck run anyway

1, 2, 3 or 4 [4]: """
_RULES = {
    "1": "other_writers: conditional_put",
    "2": "other_writers: none",
    "3": "other_writers: spark\n    quiet: 10 minutes",
    "4": "other_writers: spark",
}
"""The rules that an answer stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a scan found."""

    policy: str
    """The text of the proposed policy."""
    assessments: tuple[Assessment, ...]
    """The tables by that policy, those with the most work first; then what could not be read."""


def addresses_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the addresses on the command line and in the file of `--list`, each of them once."""
    addresses = [*arguments.addresses]
    if arguments.list is not None:
        try:
            lines = Path(arguments.list).read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                "the list of addresses cannot be read: "
                f"{error.strerror if isinstance(error, OSError) else 'it is not UTF-8'}",
                file=arguments.list,
                remedy="give a file with one address in each line",
            ) from error
        stripped_lines = (line.strip(" \t\r") for line in lines)
        listed = [line for line in stripped_lines if line and not line.startswith("#")]
        if not listed:
            raise InvalidRequestError(
                "the list names no address",
                file=arguments.list,
                remedy="write one address in each line",
            )
        addresses += listed
    return tuple(dict.fromkeys(map(_absolute_address, addresses)))


def scan(addresses: Sequence[str], arguments: argparse.Namespace) -> Scan:
    """Finds the tables at and below the addresses, assesses them, and proposes a policy.

    Opens logs only, and changes nothing. Raises the error of an address that cannot be listed if no
    table is found, and `InvalidRequestError` if there is none.
    """
    options = dict(arguments.storage_options)
    selected = argparse.Namespace(
        names=[], state=None, config=None, storage_options=[*options.items()]
    )
    everything = [ScannedPlace(address=address, is_table=False) for address in addresses]
    tables = PolicyTables(selected, _policy(everything))
    warn(tables.found.warnings())
    if not tables.tables:
        tables.found.complete()
        raise InvalidRequestError(
            f"there is no Delta table at or below {', '.join(addresses)}",
            remedy="give a folder above tables, a bucket or a table; a Delta table has a folder "
            "_delta_log",
        )
    with ThreadPoolExecutor(_PARALLEL) as pool:
        writers = {
            table.uri: table_writers
            for table, table_writers in zip(
                tables.tables, pool.map(partial(_writers, tables), tables.tables), strict=True
            )
        }
    places = _places(addresses, writers, arguments)
    policy = _policy(places)
    tables.tables = [policy.table_at(table.uri, name=table.name) for table in tables.tables]
    assessments = tables.assessments()
    clusters = any(
        assessment.health and assessment.health.clustering_columns for assessment in assessments
    )
    failed = [assessment.uri for assessment in assessments if assessment.status == "failed"]
    places = [
        replace(place, unreadable=tuple(uri for uri in failed if _is_below(uri, place.address)))
        for place in places
    ]
    heading = f"Written on {clock.now():%F} for {count_text(len(tables.tables), 'table')}."
    return Scan(
        policy=policy_for_places(places, heading=heading, clusters=clusters, options=options),
        assessments=tuple(sorted(assessments, key=_work)),
    )


def print_scan(result: Scan) -> None:
    """Prints the tables with the most work, the problems, and what the first run would do."""
    read = [
        assessment
        for assessment in result.assessments
        if assessment.health is not None and assessment.status != "failed"
    ]
    failed = [assessment for assessment in result.assessments if assessment.status == "failed"]
    print_lines(
        ("table", "files", "small", "log to open", "due"),
        [
            (
                assessment.name,
                f"{health.num_files:,}",
                f"{health.small_file_share:.0%}",
                size_text(health.bytes_to_open),
                _due_text(assessment.due),
            )
            for assessment in read[:_SHOWN]
            if (health := assessment.health) is not None
        ],
    )
    if len(read) > _SHOWN:
        print(f"and {count_text(len(read) - _SHOWN, 'more table')} with less work")
    say_by_cause((one.name, one.uri, note) for one in read for note in one.notes)
    report_failures((one.name, one.uri, one.problem, one.exit_status) for one in failed)
    of_all = f"{len(read):,} of " if failed else ""
    tables = count_text(len(read) + len(failed), "table")
    first_run = [*_first_run(read)]
    print(f"\nA first run by the proposed policy, on {of_all}{tables}:")
    if first_run:
        print_table(("operation", "tables", "would"), first_run)
    else:
        print("  nothing to do")


def _first_run(assessments: Iterable[Assessment]) -> Iterable[tuple[object, ...]]:
    due: dict[str, list[AssessedOperation]] = {}
    for assessment in assessments:
        for operation_due in assessment.operations:
            if operation_due.status == "due":
                due.setdefault(operation_due.operation, []).append(operation_due)
    for operation, of_tables in due.items():
        yield operation, f"{len(of_tables):,}", "; ".join(_would(of_tables))
    operations = (operation for assessment in assessments for operation in assessment.operations)
    blocked = Counter(each.operation for each in operations if each.status == "blocked")
    for operation, number in blocked.items():
        yield operation, f"{number:,}", "be blocked; `assess --reasons` says why"


def _due_text(due: Sequence[AssessedOperation]) -> str:
    """Returns the operations with work, and those that look whether there is some."""
    work, checks = (
        ", ".join(each.operation for each in due if each.by_calendar == by_calendar)
        for by_calendar in (False, True)
    )
    return "; ".join(filter(None, (work, checks and f"to check: {checks}"))) or "nothing to do"


def _would(due: Sequence[AssessedOperation]) -> Iterable[str]:
    checks = sum(operation.by_calendar for operation in due)
    if checks:
        yield "look for work" if checks == len(due) else f"look for work in {checks:,}"
    if any(operation.needs_approval for operation in due):
        yield f"wait for your approval{' if there is work' if checks else ''}"
    files, size = sum(e.reclaims_files for e in due), sum(e.reclaims_bytes for e in due)
    if files:
        yield f"delete at least {count_text(files, 'file')}, {size_text(size)}"
    replayed = [e for e in due if e.commits_to_replay is not None]
    if replayed:
        before = sum(e.commits_to_replay or 0 for e in replayed)
        after = sum(e.commits_to_replay_after or 0 for e in replayed)
        yield f"leave {after:,} of {count_text(before, 'log file')} to replay"
    if to_read := sum(e.bytes_to_read for e in due):
        yield f"read {size_text(to_read)}"
    if on_spark := sum(e.engine == "spark" for e in due):
        yield f"use Spark for {on_spark:,}"


def _policy(places: Sequence[ScannedPlace]) -> Policy:
    import yaml

    from delta_maintenance.policies.definition.policy import Policy

    text = policy_for_places(places, heading="", clusters=True, options={})
    return Policy.model_validate(yaml.safe_load(text))


def _places(
    addresses: Sequence[str], writers: Mapping[str, Sequence[str]], arguments: argparse.Namespace
) -> list[ScannedPlace]:
    """`writers` are those of each table, by its address."""
    of_spark = [uri for uri, engines in writers.items() if any(map(is_delta_spark, engines))]
    rules, rules_beside_spark = UNSTATED, _RULES["4"]
    if arguments.other_writers is not None:
        rules = rules_beside_spark = f"other_writers: {arguments.other_writers}"
    elif of_spark and not arguments.json and sys.stdin.isatty() and sys.stdout.isatty():
        rules_beside_spark = _ask_for_rules(of_spark)
    places = []
    for address in addresses:
        below = [uri for uri in writers if _is_below(uri, address)]
        distinct_writers = dict.fromkeys(writer for uri in below for writer in writers[uri])
        place = ScannedPlace(
            address=address,
            is_table=below == [address],
            writers=tuple(distinct_writers),
            rules=rules if set(below).isdisjoint(of_spark) else rules_beside_spark,
        )
        places.append(place)
    return places


def _is_below(address: str, folder: str) -> bool:
    """Whether an address is a folder, or lies in it."""
    return f"{address}/".startswith(f"{folder.rstrip('/')}/")


def _ask_for_rules(tables: Sequence[str]) -> str:
    """Asks until there is an answer; the end of the input is the default."""
    number = count_text(len(tables), "table")
    question = _QUESTION.format(tables=number, example=printable(tables[0]))
    with suppress(EOFError):
        while answer := input(question).strip():
            if answer in _RULES:
                return _RULES[answer]
            question = "1, 2, 3 or 4 [4]: "
    return _RULES["4"]


def _writers(tables: PolicyTables, table: PolicyTable) -> Sequence[str]:
    """Returns who wrote the newest commits of a table on S3."""
    if not table.uri.startswith("s3"):
        return ()
    try:
        with tables.open(table) as opened:
            commits = opened.history(limit=_COMMITS)
    except DeltaMaintenanceError:
        # The assessment of the table has the same problem.
        return ()
    engines = (commit.commit_info.get("engineInfo") for commit in commits)
    return tuple(dict.fromkeys(engine for engine in engines if isinstance(engine, str)))


def _work(assessment: Assessment) -> tuple[bool, int, str]:
    """The order of tables: those with the most bytes to read first."""
    to_read = sum(operation.bytes_to_read for operation in assessment.due)
    return assessment.health is None, -to_read, assessment.name


def _absolute_address(address: str) -> str:
    if is_catalog_name(address):
        raise InvalidRequestError(
            f"{address} is a name in a catalog, which cannot be scanned",
            remedy="name the catalog under `catalogs` in a policy, as "
            "docs/integrations/catalogs.md shows, and list its tables with "
            "`delta-maintenance tables`",
        )
    if re.search(r"[*?]", address):
        raise InvalidRequestError(
            f"{address} contains a wildcard", remedy="give the folder, which is searched whole"
        )
    return str(Address.parse(address).absolute()).rstrip("/") or "/"
