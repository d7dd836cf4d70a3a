"""Reads files and counts the rows that match a condition."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance import clock
from delta_maintenance.clock import instant
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError, StorageError
from delta_maintenance.operations.erasure_report.places import (
    PlacedFile,
    PlacedFiles,
    has_no_rows,
    one_array,
)
from delta_maintenance.operations.erasure_report.readings import (
    FileReadings,
    TableReadings,
    VersionReading,
)
from delta_maintenance.operations.erasure_report.versions import VersionState
from delta_maintenance.protocol.columns import booleans
from delta_maintenance.protocol.data_files.other_columns import holds_columns_besides
from delta_maintenance.protocol.schema.data_columns import StoredColumns
from delta_maintenance.scratch import scratch_folder, scratch_writes
from delta_maintenance.storage.core.base import OldVersion, OldVersions
from delta_maintenance.table.data.parquet.files import ReadAhead
from delta_maintenance.table.data.parquet_input import ParquetInput
from delta_maintenance.table.data.row_batches import reading_error
from delta_maintenance.table.data.row_reader import RowReader
from delta_maintenance.table.parallel import in_parallel
from delta_maintenance.table.read.log_file import LOG_DIRECTORY

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    """The matching rows of a file in one reading."""

    rows: int = 0
    problem: str | None = None
    is_sure: bool = False
    """Whether the file has all columns of the condition, so that it can be read like this."""


class Examination:
    """Looks for matching rows in the files of a table."""

    def __init__(self, files: PlacedFiles, readings: Mapping[str, TableReadings]) -> None:
        """`readings` are those of all tables that can have the files, by the name of the table."""
        self._files = files
        self._store = files.store
        self._own = readings[files.name]
        self._all = [reading for table in readings.values() for reading in table.all]
        self._states = [reading for table in readings.values() for reading in table.versions.states]
        paths = one_array(files.listed["path"])
        self._of_files = FileReadings(readings, own=files.name, paths=paths, root=self._store.root)
        is_known = np.zeros(len(paths), np.bool_)
        for name in readings:
            is_known |= self._of_files.files_of(name)
        self._is_unsure = ~is_known
        """Files of which the log, or that of another table, does not tell all versions."""
        for needed in files.needed:
            self._is_unsure |= needed.covers(paths) & ~self._of_files.files_of(needed.holder)
        self._paths = paths
        self._has_rows = np.ones(len(paths), np.bool_)

    @property
    def without_rows(self) -> pa.StringArray:
        """The paths of the listed files that were examined and that have no matching rows."""
        return self._paths.filter(booleans(~self._has_rows))

    def run(self) -> Iterator[Examined]:
        """Yields every file of the folder, then every old version of a file."""
        yield from in_parallel(self._examine, self._files.files())
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

    def _examine(self, file: PlacedFile) -> Examined:
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
        row_count = self._count_matching(file, digest, opened)
        if not row_count.rows and row_count.problem is None and file.number is not None:
            self._has_rows[file.number] = False
        if not row_count.rows or file.place != "live":
            return row_count
        latest = [(reading, file.row) for reading in self._own.latest]
        counts = [self._count(each, opened, only_live=True) for each in latest]
        if any(count.rows or count.problem for count in counts):
            return row_count
        if any(self._count(each, opened).rows for each in latest):
            remedy = "a deletion vector marks the rows: purge, then vacuum"
            return replace(row_count, file=replace(file, place="deletion-vector", ends_by=remedy))
        remedy = "only older versions read the rows, as they read the column: purge, then vacuum"
        return replace(row_count, file=replace(file, ends_by=remedy))

    def _count_matching(self, file: PlacedFile, digest: str, opened: BinaryIO) -> Examined:
        """Counts the matching rows in the content of a file, as its versions read them."""
        sure = [] if file.number is None else self._of_files.of(file.number)
        counts = [self._count(each, opened) for each in sure]
        problems = [count.problem for count in counts if count.problem is not None]
        if file.number is None or self._is_unsure[file.number]:
            guesses = [self._count((reading, file.row), opened) for reading in self._all]
            counts += guesses
            if not any(count.is_sure for count in guesses):
                problems += [count.problem for count in guesses if count.problem is not None]
        rows = max((count.rows for count in counts), default=0)
        problem = next(iter(problems), None) or (None if rows else self._other_columns(opened))
        return Examined(file=file, rows=rows, sha256=digest, problem=problem)

    def _count(
        self, use: tuple[VersionReading, pa.Table], opened: BinaryIO, *, only_live: bool = False
    ) -> _Count:
        """Counts the matching rows of a file in one reading."""
        reading, row = use
        if reading.condition is None or reading.layout is None:
            assert reading.problem is not None
            return _Count(problem=f"as version {reading.version} has it, {reading.problem.problem}")
        if not only_live:
            at = row.schema.get_field_index("deletionVector")
            row = row.set_column(at, row.schema.field(at), pa.nulls(1, row.schema.field(at).type))
        names = [field.name for field in reading.layout.columns.fields]
        counted = 0
        try:
            missing = reading.lacks_value(row)
            if missing is not None:
                raise RefusedError(f"its value of the partition column {missing} is unknown")
            # Closing this leaves the file open.
            source = cast(BinaryIO, ReadAhead(opened))
            for rows in RowReader(self._store, reading.layout).read(row, 0, source=source):
                columns = dict(zip(names, rows.columns, strict=True))
                counted += pc.sum(reading.condition.matching(columns)).as_py() or 0
            local = None if counted else reading.local_time(row)
            if local is not None:
                raise RefusedError(f"its partition value {local!r} is a time without a time zone")
            is_sure = self._has_columns(reading, opened)
        except FileNotFoundError:
            return _Count(problem=_DELETED)
        except DeltaMaintenanceError as error:
            return _Count(rows=counted, problem=error.problem)
        except pa.ArrowException as error:
            return _Count(rows=counted, problem=reading_error(error, file="").problem)
        return _Count(rows=counted, is_sure=is_sure)

    def _has_columns(self, reading: VersionReading, opened: BinaryIO) -> bool:
        """Whether a file has all columns of a reading whose values are not in the log."""
        assert reading.layout is not None
        partitioned = reading.layout.partition_columns
        with ParquetInput(cast(BinaryIO, ReadAhead(opened))) as parquet:
            stored = parquet.stored_columns(reading.layout.mode)
            present = list(parquet.schema)
        columns = (c for c in reading.layout.columns.fields if c.name not in partitioned)
        return None not in reading.columns.values() and all(
            at is not None for _, at in stored.find(columns, present)
        )

    def _other_columns(self, opened: BinaryIO) -> str | None:
        """Returns the problem of a file whose columns no version that can be opened has."""
        try:
            with ParquetInput(cast(BinaryIO, ReadAhead(opened))) as parquet:
                schema = parquet.schema
            if all(self._is_other(schema, state) for state in self._states):
                return "it has columns that no version has that can be opened: purge, then vacuum"
        except DeltaMaintenanceError as error:
            return error.problem
        except (pa.ArrowException, OSError) as error:
            return reading_error(error, file="").problem
        return None

    def _is_other(self, schema: pa.Schema, state: VersionState) -> bool:
        top = [column for column in state.columns if len(column.names) == 1]
        besides = [column.physical[0] for column in top if column.is_partition]
        return holds_columns_besides(
            schema,
            state.schema,
            StoredColumns(mode=state.mode),
            besides=[*besides, *state.hidden_columns],
        )

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
            row=self._files.describe_file(version.path, version.size),
            ends=None if version.ends_ms is None else instant(version.ends_ms),
            ends_by=version.ends_by,
            version_id=version.version_id,
            clone=self._files.clone,
        )
        if version.problem is not None:
            return Examined(file=file, rows=0, sha256="", problem=_with_end(version.problem, file))
        try:
            with scratch_writes(target), target.open("wb") as sink:
                for first_row in range(0, version.size, _PIECE):
                    last_row = min(first_row + _PIECE, version.size) - 1
                    sink.write(old.read(version, first_row, last_row))
        except StorageError as error:
            return Examined(file=file, rows=0, sha256="", problem=error.problem)
        with target.open("rb") as opened:
            digest, is_parquet = _sha256(opened)
            if not is_parquet and not version.path.lower().endswith(_SUFFIX):
                return Examined(file=file, rows=0, sha256=digest, is_parquet=False)
            return self._count_matching(file, digest, opened)


def _with_end(problem: str, file: PlacedFile) -> str:
    return problem if file.ends is None else f"{problem}, until {clock.text(file.ends)}"


def _sha256(file: BinaryIO) -> tuple[str, bool]:
    """Returns the checksum of a file, and whether it begins like a Parquet file."""
    digest, is_parquet = hashlib.sha256(), False
    for number, piece in enumerate(iter(partial(file.read, _PIECE), b"")):
        if not number:
            # The second is that of an encrypted footer.
            is_parquet = piece[:4] in (b"PAR1", b"PARE")
        digest.update(piece)
    return digest.hexdigest(), is_parquet
