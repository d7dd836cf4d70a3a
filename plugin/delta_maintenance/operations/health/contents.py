"""The contents of a table, as a catalog of data shows them: its columns and its rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from delta_maintenance.operations.health.models import TableHealth
from delta_maintenance.protocol.schema.types import parse_schema
from delta_maintenance.table.read.snapshot import Snapshot

_MOST_FILES = 10_000
"""The number of files up to which rows are counted: the statistics are most of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    type: str
    """Such as `long` or `struct<street:string>`."""
    is_nullable: bool
    comment: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableContents:
    """The columns of one version of a table, and its rows."""

    columns: tuple[Column, ...]
    rows: int | None
    """The rows that readers see; None if a file does not state its rows, or if there are too many
    files to count."""


def read_contents(snapshot: Snapshot, health: TableHealth) -> TableContents:
    """Returns the contents of a version. `health` is that of the same version, if rows matter.

    Raises `CorruptTableError` for a schema that cannot be parsed.
    """
    schema = snapshot.metadata.schema_string
    columns = tuple(
        Column(
            name=field.name,
            type=str(field.type),
            is_nullable=field.nullable,
            # Some engines write null.
            comment=str(field.metadata.get("comment") or "") or None,
        )
        for field in (() if schema is None else parse_schema(schema).fields)
    )
    return TableContents(columns=columns, rows=_visible_rows(snapshot, health))


def _visible_rows(snapshot: Snapshot, health: TableHealth) -> int | None:
    if health.version != snapshot.version:
        return None
    if health.rows is not None:
        return health.rows - health.deleted_rows
    if health.num_files > _MOST_FILES:
        return None
    rows = 0
    for files in snapshot.live_file_batches():
        if files["num_records"].null_count:
            return None
        rows += pc.sum(files["num_records"]).as_py() or 0
    return rows - health.deleted_rows
