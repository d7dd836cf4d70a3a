"""Logs with one commit a day, their clean-up, and the versions that must be readable afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import clean_log
from delta_maintenance.operations.clean_log import CleanLogOptions, CleanLogPlan, CleanLogResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import LogFileKind, parse_log_file_name
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import UnusableCheckpointError
from tests.support.logs.checkpointing import state_of
from tests.support.tables.actions import Action, add, features, metadata, protocol, remove
from tests.support.tables.table_builder import LOG, UUID, TableBuilder

FIRST = datetime(2024, 3, 1, 12, tzinfo=UTC)
"""Noon: the time of version 0; one commit a day follows."""
FOLDERS = ("", "/_sidecars", "/_staged_commits")


def day(number: float) -> datetime:
    """Returns the time this many days after version 0."""
    return FIRST + timedelta(days=number)


def build(
    commits: int = 50,
    *,
    listed: Action | None = None,
    configuration: dict[str, str] | None = None,
    info: Any = lambda version: [],
) -> TableBuilder:
    """A commit a day: each adds a file and removes the one before."""
    table = TableBuilder()
    for version in range(commits):
        lines: list[Any] = [*info(version), add(f"f{version}")]
        if version == 0:
            lines += [listed or protocol(), metadata(configuration=configuration)]
        else:
            lines.append(remove(f"f{version - 1}"))
        table.commit(lines, at_ms=epoch_millis(day(version)))
    return table


def names(table: TableBuilder) -> list[str]:
    """Every file of the log, relative to it."""
    return [
        status.path.removeprefix(f"{LOG}/")
        for folder in FOLDERS
        for status in table.store.list_from(LOG + folder)
    ]


def at(table: TableBuilder, now: datetime) -> datetime:
    """Sets the clock of the table's store."""
    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(now)
    return now


def plan(table: TableBuilder, now: datetime, **options: Any) -> CleanLogPlan:
    return clean_log.plan(
        table.open().snapshot(), CleanLogOptions(**options), context=RunContext.at(now)
    )


def clean(table: TableBuilder, now: datetime, **options: Any) -> CleanLogResult:
    planned = plan(table, now, **options)
    return clean_log.apply(table.open(), planned, context=RunContext.at(at(table, now)))


@contextmanager
def promised(table: TableBuilder, oldest: int) -> Iterator[None]:
    """Checks that every version from `oldest` on is the same afterwards.

    A version needs its checkpoint or compaction and all commits up to it. The last version before
    each of these files, that version and the newest one therefore represent those in between.
    """
    files = map(parse_log_file_name, names(table))
    ends = {
        file.end_version if file.kind is LogFileKind.COMPACTION else file.version
        for file in files
        if file.kind in BASES
    }
    chosen = {oldest, table.version, *ends, *((end or 0) - 1 for end in ends)}
    versions = [version for version in range(oldest, table.version + 1) if version in chosen]
    before = {version: state(table, version) for version in versions}
    yield
    for version in versions:
        assert state(table, version) == before[version], version
    assert table.open().snapshot().version == table.version


def state(table: TableBuilder, version: int) -> Any:
    snapshot = table.open().snapshot(version=version)
    try:
        found = state_of(snapshot)
    except UnusableCheckpointError as error:
        found = state_of(snapshot.avoiding(error))
    for files in (found.live, found.tombstones):
        for value in files.values():
            # A checkpoint only changes `dataChange` to false.
            del value["dataChange"]
    return found


BASES = (
    LogFileKind.CLASSIC_CHECKPOINT,
    LogFileKind.MULTIPART_CHECKPOINT,
    LogFileKind.UUID_CHECKPOINT,
    LogFileKind.COMPACTION,
)


def with_sidecars() -> TableBuilder:
    """V2 checkpoints of versions 9, 18 and 30, each with two sidecars, all of them old."""
    table = build(listed=features("v2Checkpoint"))
    for version in (9, 18, 30):
        table.v2_checkpoint(version, sidecars=2, uuid=f"{UUID[:-2]}{version:02}")
    return table
