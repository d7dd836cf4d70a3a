"""Reads files and counts the rows that match a condition."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import instant
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError, StorageError
from delta_maintenance.operations.erasure_report.places import PlacedFile, TableFiles, has_no_rows
from delta_maintenance.parquet.files import ReadAhead
from delta_maintenance.protocol.schema.types import parse_schema, physical_name
from delta_maintenance.scratch import scratch_folder, scratch_writes
from delta_maintenance.storage.core.old_versions import OldVersion, OldVersions
from delta_maintenance.table.data.matching_rows import RowCondition
from delta_maintenance.table.data.row_reader import RowLayout, RowReader
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.snapshot import Snapshot

_PIECE = 8 << 20
_SUFFIX = ".parquet"
_DELETED = "it was deleted during the examination"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One file after it was read."""

    file: PlacedFile
    rows: int
    """Matching rows in the file."""
    sha256: str
    problem: str | None = None
    """Why the rows could not be read."""
    is_parquet: bool = True
    """False for a file that the log does not know and that is no Parquet file."""


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
            if not self._store.tells_old_versions:
                self._files.leave_out("the contents of deleted files that the store may still keep")
            return
        try:
            yield from self._examined_old(old)
        except DeltaMaintenanceError as error:
            # Often, only the right to read the settings and versions of the bucket is missing.
            self._files.leave_out(
                f"old versions of files in the store: {error.problem}; {error.remedy}"
            )

    def _examined(self, file: PlacedFile) -> Examined:
        try:
            before = self._store.stat(file.path)
            with self._store.open(file.path) as opened:
                examined = self._content(file, opened)
            after = self._store.stat(file.path)
        except FileNotFoundError:
            return Examined(file=file, rows=0, sha256="", problem=_DELETED)
        except DeltaMaintenanceError as error:
            return Examined(file=file, rows=0, sha256="", problem=error.problem)
        if after is not None and after != before:
            # The checksum and the rows may be those of different contents.
            return replace(examined, problem="it was replaced during the examination")
        return examined

    def _content(self, file: PlacedFile, opened: BinaryIO) -> Examined:
        """Examines an open file, which is the same file for the checksum and for the rows."""
        digest, is_parquet = _sha256(opened)
        suffix = file.path.lower().endswith(_SUFFIX)
        if not is_parquet and not suffix and file.place == "unreferenced":
            return Examined(file=file, rows=0, sha256=digest, is_parquet=False)
        # Closing this leaves the file open.
        found = self._counted(file, digest, cast(BinaryIO, ReadAhead(opened)))
        if not found.rows or file.place != "live" or file.row["deletionVector"].null_count:
            return found
        live = self._counted(file, digest, cast(BinaryIO, ReadAhead(opened)), only_live=True)
        if live.rows or live.problem is not None:
            return found
        why = "a deletion vector marks the rows: purge, then vacuum"
        return replace(found, file=replace(file, place="deletion-vector", ends_by=why))

    def _counted(
        self,
        file: PlacedFile,
        digest: str,
        source: BinaryIO,
        *,
        only_live: bool = False,
    ) -> Examined:
        """Counts the matching rows in the content of a file."""
        values = dict(file.row["partitionValues"][0].as_py() or ())
        missing = [key for key in self._keys if key not in values]
        row = file.row
        if not only_live:
            at = row.schema.get_field_index("deletionVector")
            row = row.set_column(at, row.schema.field(at), pa.nulls(1, row.schema.field(at).type))
        names = [each.name for each in self._layout.columns.fields]
        counted = 0
        try:
            if missing:
                raise RefusedError(f"its value of the partition column {missing[0]} is unknown")
            reader = RowReader(self._store, self._layout)
            for rows in reader.read(row, 0, source=source):
                columns = dict(zip(names, rows.columns, strict=True))
                counted += pc.sum(self._condition.matching(columns)).as_py() or 0
        except FileNotFoundError:
            return Examined(file=file, rows=0, sha256=digest, problem=_DELETED)
        except DeltaMaintenanceError as error:
            return Examined(file=file, rows=0, sha256=digest, problem=error.problem)
        return Examined(file=file, rows=counted, sha256=digest)

    def _examined_old(self, old: OldVersions) -> Iterator[Examined]:
        with scratch_folder() as folder:
            for number, version in enumerate(old.list()):
                if version.path.startswith(f"{LOG_DIRECTORY}/") or has_no_rows(version.path):
                    continue
                target = folder / str(number)
                yield self._old(old, version, target)
                target.unlink(missing_ok=True)

    def _old(self, old: OldVersions, version: OldVersion, target: Path) -> Examined:
        file = PlacedFile(
            place="old-version",
            path=version.path,
            size=version.size,
            row=self._files.described(version.path, version.size),
            ends=None if version.ends_ms is None else instant(version.ends_ms),
            ends_by=version.ends_by,
            version_id=version.version_id,
            clone=self._files.clone,
        )
        if version.problem is not None:
            return Examined(file=file, rows=0, sha256="", problem=_with_end(version.problem, file))
        try:
            with scratch_writes(target), target.open("wb") as sink:
                for first in range(0, version.size, _PIECE):
                    last = min(first + _PIECE, version.size) - 1
                    sink.write(old.read(version, first, last))
        except StorageError as error:
            return Examined(file=file, rows=0, sha256="", problem=error.problem)
        with target.open("rb") as opened:
            digest, is_parquet = _sha256(opened)
        if not is_parquet and not version.path.lower().endswith(_SUFFIX):
            return Examined(file=file, rows=0, sha256=digest, is_parquet=False)
        return self._counted(file, digest, target.open("rb"))


def condition_of(snapshot: Snapshot, text: str) -> RowCondition:
    """Parses a condition on the rows of a table. `InvalidRequestError` if it cannot be used."""
    return RowCondition(text, parse_schema(snapshot.metadata.schema_string or ""))


def _with_end(problem: str, file: PlacedFile) -> str:
    return problem if file.ends is None else f"{problem}, until {file.ends:%Y-%m-%dT%H:%M:%SZ}"


def _sha256(file: BinaryIO) -> tuple[str, bool]:
    """Returns the checksum of a file, and whether it begins like a Parquet file."""
    digest, is_parquet = hashlib.sha256(), False
    for number, piece in enumerate(iter(partial(file.read, _PIECE), b"")):
        if not number:
            # The second is that of an encrypted footer.
            is_parquet = piece[:4] in (b"PAR1", b"PARE")
        digest.update(piece)
    return digest.hexdigest(), is_parquet
