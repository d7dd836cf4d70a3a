"""Reads files and counts the rows that match a condition."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import instant
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.operations.erasure_report.places import PlacedFile, TableFiles
from delta_maintenance.protocol.schema.types import parse_schema, physical_name
from delta_maintenance.scratch import scratch_folder, scratch_writes
from delta_maintenance.storage.core.old_versions import OldVersion, OldVersions
from delta_maintenance.table.data.matching_rows import RowCondition
from delta_maintenance.table.data.row_reader import RowLayout, RowReader
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.snapshot import Snapshot

_PIECE = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One file after it was read."""

    file: PlacedFile
    rows: int
    """Matching rows in the file."""
    sha256: str
    problem: str | None
    """Why the rows could not be read."""


class Examination:
    """Looks for matching rows in the files of a table."""

    def __init__(self, files: TableFiles, condition: str) -> None:
        """`InvalidRequestError` if the condition cannot be used on the table."""
        snapshot = files.snapshot
        self._files = files
        self._store = files.store
        schema = parse_schema(snapshot.metadata.schema_string or "")
        self._condition = RowCondition(condition, schema)
        self._layout = RowLayout.of(snapshot, self._condition.columns, zone=UTC)
        self._keys = [
            physical_name(column, self._layout.mode)
            for column in self._layout.columns.fields
            if column.name in self._layout.partition_columns
        ]

    def run(self) -> Iterator[Examined]:
        """Yields every file of the folder, then every old version of a file."""
        yield from in_parallel(self._examined, self._files.files())
        old = self._store.old_versions
        if old is None:
            return
        try:
            yield from self._examined_old(old)
        except DeltaMaintenanceError as error:
            # Often, only the right to read the settings and versions of the bucket is missing.
            self._files.not_examined.append(
                f"old versions of files in the store: {error.problem}; {error.remedy}"
            )

    def _examined(self, file: PlacedFile) -> Examined:
        digest = ""
        try:
            with self._store.open(file.path) as opened:
                digest = _sha256(opened)
            rows, live = self._rows(file)
        except FileNotFoundError:
            return Examined(
                file=file, rows=0, sha256="", problem="it was deleted during the examination"
            )
        except DeltaMaintenanceError as error:
            return Examined(file=file, rows=0, sha256=digest, problem=error.problem)
        if rows and file.place == "live" and not live:
            why = "a deletion vector marks the rows: purge, then vacuum"
            file = replace(file, place="deletion-vector", ends_by=why)
        return Examined(file=file, rows=rows, sha256=digest, problem=None)

    def _rows(self, file: PlacedFile) -> tuple[int, int]:
        """Returns the matching rows in the file, and those of them that are not deleted."""
        values = dict(file.row["partitionValues"][0].as_py() or ())
        missing = [key for key in self._keys if key not in values]
        if missing:
            raise RefusedError(f"its value of the partition column {missing[0]} is unknown")
        vectors = file.row.schema.get_field_index("deletionVector")
        every = pa.nulls(1, file.row.schema.field(vectors).type)
        whole = file.row.set_column(vectors, "deletionVector", every)
        rows = self._matching(self._reader(), whole)
        if not rows or file.row["deletionVector"].null_count:
            return rows, rows
        return rows, self._matching(self._reader(), file.row)

    def _reader(self) -> RowReader:
        return RowReader(self._store, self._layout)

    def _matching(self, reader: RowReader, file: pa.Table, source: BinaryIO | None = None) -> int:
        names = [each.name for each in self._layout.columns.fields]
        return sum(
            pc.sum(self._condition.matching(dict(zip(names, rows.columns, strict=True)))).as_py()
            or 0
            for rows in reader.read(file, 0, source=source)
        )

    def _examined_old(self, old: OldVersions) -> Iterator[Examined]:
        with scratch_folder() as folder:
            for number, version in enumerate(old.list()):
                if not version.path.lower().endswith(".parquet") or version.path.startswith(
                    "_delta_log/"
                ):
                    continue
                target = folder / f"{number}.parquet"
                yield self._old(old, version, target)
                target.unlink(missing_ok=True)

    def _old(self, old: OldVersions, version: OldVersion, target: Path) -> Examined:
        row = self._files.described(version.path, version.size)
        ends = None if version.ends_ms is None else instant(version.ends_ms)
        file = PlacedFile(
            place="old-version",
            path=version.path,
            size=version.size,
            row=row,
            ends=ends,
            ends_by="a lifecycle rule of the bucket"
            if ends is not None
            else "no lifecycle rule of the bucket deletes noncurrent versions: delete it there",
            version_id=version.version_id,
        )
        with scratch_writes(target), target.open("wb") as sink:
            for first in range(0, version.size, _PIECE):
                last = min(first + _PIECE, version.size) - 1
                sink.write(old.read(version, first, last))
        with target.open("rb") as opened:
            digest = _sha256(opened)
        values = dict(row["partitionValues"][0].as_py() or ())
        missing = [key for key in self._keys if key not in values]
        try:
            if missing:
                raise RefusedError(f"its value of the partition column {missing[0]} is unknown")
            rows = self._matching(self._reader(), row, target.open("rb"))
        except DeltaMaintenanceError as error:
            return Examined(file=file, rows=0, sha256=digest, problem=error.problem)
        return Examined(file=file, rows=rows, sha256=digest, problem=None)


def condition_of(snapshot: Snapshot, text: str) -> RowCondition:
    """Parses a condition on the rows of a table. `InvalidRequestError` if it cannot be used."""
    return RowCondition(text, parse_schema(snapshot.metadata.schema_string or ""))


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    for piece in iter(partial(file.read, _PIECE), b""):
        digest.update(piece)
    return digest.hexdigest()
