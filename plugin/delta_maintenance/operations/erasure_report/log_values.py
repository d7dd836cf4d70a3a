"""Values of the rows in the log: in the statistics and partition values of its file actions.

Statistics state the least and the greatest value of a column, so they can repeat a value after its
row is gone. An action counts if the condition is true of these values. Actions of files that were
examined and have no matching rows do not count: their values are those of other rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice, product

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import instant
from delta_maintenance.errors import CorruptTableError, DeltaMaintenanceError
from delta_maintenance.operations.erasure_report.examination import Examined
from delta_maintenance.operations.erasure_report.places import (
    PlacedFile,
    PlacedFiles,
    end_of,
    one_array,
)
from delta_maintenance.operations.erasure_report.readings import TableReadings, VersionReading
from delta_maintenance.operations.layout.reading import Column, file_statistics
from delta_maintenance.protocol.actions.file_columns import COMMIT_VERSION
from delta_maintenance.protocol.actions.paths import file_locations
from delta_maintenance.protocol.delta_log.file_names import LogFileKind
from delta_maintenance.protocol.delta_log.version_checksum import parse_checksum
from delta_maintenance.protocol.ndjson.parse import FileLines, parse_file_actions
from delta_maintenance.protocol.ndjson.split import LineRun
from delta_maintenance.protocol.schema.condition import Names
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.protocol.schema.types import to_arrow_type
from delta_maintenance.table.data.row_reader import FILES
from delta_maintenance.table.read.checkpoint_reader import Checkpoint
from delta_maintenance.table.read.log_file import LogEntry, read_listed, relisting
from delta_maintenance.table.read.log_reader import LogTail
from delta_maintenance.table.read.segment import CheckpointFiles, LogListing, arrange, list_entries

_FIELDS = {
    "add": ("path", "partitionValues", "stats", "stats_parsed"),
    "remove": ("path", "partitionValues", "stats"),
}
_MOST_COMBINATIONS = 64
_WHY = "the next clean-log after this time, if a newer checkpoint can take its place"


class LogValues:
    """Looks for values of the rows in the log of a table, after its files were examined."""

    def __init__(self, files: PlacedFiles, readings: TableReadings, without_rows: pa.Array) -> None:
        """`without_rows` are the paths of the files that have no matching rows."""
        self._files = files
        self._readings = [reading for reading in readings.all if reading.condition is not None]
        self._keys = readings.versions.map_keys
        self._without_rows = without_rows.cast(pa.binary())
        self._held: dict[str, tuple[str, datetime | None]] = {}
        # A hold without an end is the last one to end.
        for hold in sorted(files.holds.holds, key=end_of):
            segment = hold.snapshot.log.segment
            checkpoint_parts = segment.checkpoint.entries if segment.checkpoint is not None else ()
            held = (hold.holder, hold.until)
            last_commits = (segment.base_commit, segment.last_commit)
            self._held |= {
                e.path: held
                for e in (*checkpoint_parts, *segment.commits, *last_commits)
                if e is not None
            }

    def run(self) -> Iterator[Examined]:
        """Yields the files of the log that have such values, with the number of their actions."""
        entries, listing, counts = relisting(self._of_commits)
        yield from (self._found(listing.commits[version], n) for version, n in counts.items())
        for entry in listing.compactions:
            yield from self._search(entry, partial(self._of_tail, entry))
        for files in listing.checkpoints:
            yield from self._search(files.entries[0], partial(self._of_checkpoint, files))
        for entry in entries:
            if entry.file.kind is LogFileKind.CHECKSUM:
                yield from self._search(entry, partial(self._of_checksum, entry))

    def _of_commits(self) -> tuple[list[LogEntry], LogListing, Counter[int]]:
        """Lists the log, and counts the actions with such values of each commit."""
        store = self._files.store
        entries = list(list_entries(store))
        listing = arrange(entries)
        counts: Counter[int] = Counter()
        commits = [listing.commits[version] for version in sorted(listing.commits)]
        for batch in LogTail(store, commits).batches(keys=self._keys, fields=_FIELDS):
            for rows in (batch.adds, batch.removes):
                counts.update(rows.filter(self._mark(rows))[COMMIT_VERSION].to_pylist())
        return entries, listing, counts

    def _of_tail(self, entry: LogEntry) -> Iterator[pa.Table]:
        for batch in LogTail(self._files.store, [entry]).batches(keys=self._keys, fields=_FIELDS):
            yield from (batch.adds, batch.removes)

    def _of_checkpoint(self, files: CheckpointFiles) -> Iterator[pa.Table]:
        checkpoint = Checkpoint(self._files.store, files)
        for batch in checkpoint.file_actions(keys=self._keys, fields=_FIELDS):
            yield from (batch.adds, batch.removes)

    def _of_checksum(self, entry: LogEntry) -> Iterator[pa.Table]:
        adds = parse_checksum(read_listed(self._files.store, entry.status)).all_files or ()
        lines = [LineRun(json.dumps({"add": add}).encode() + b"\n", 1, "add") for add in adds]
        if lines:
            source = FileLines(entry.path, tuple(lines), range(len(lines)))
            yield parse_file_actions([source], keys=self._keys, fields=_FIELDS).adds

    def _search(
        self, entry: LogEntry, read: Callable[[], Iterator[pa.Table]]
    ) -> Iterator[Examined]:
        try:
            count = sum(self._mark(rows).true_count for rows in read())
        except FileNotFoundError:
            return
        except DeltaMaintenanceError as error:
            self._files.leave_out(f"{entry.path}: {error.problem}")
            return
        if count:
            yield self._found(entry, count)

    def _found(self, entry: LogEntry, count: int) -> Examined:
        ends: datetime | None = (
            instant(entry.status.modified_ms) + self._files.snapshot.properties.log_retention
        )
        ends_by = _WHY
        if entry.path in self._held:
            holder, until = self._held[entry.path]
            ends_by = f"held by {holder}, then a clean-log"
            ends = None if until is None or ends is None else max(ends, until)
        file = PlacedFile(
            place="log",
            path=entry.path,
            size=entry.status.size,
            row=FILES.empty_table(),
            ends=ends,
            ends_by=ends_by,
            clone=self._files.clone,
        )
        return Examined(file=file, rows=count, sha256="")

    def _mark(self, actions: pa.Table) -> pa.BooleanArray:
        """Marks the actions with values for which the condition is true in some reading."""
        is_marked = pa.array([False] * actions.num_rows, pa.bool_())
        for reading in self._readings:
            is_marked = pc.or_(is_marked, self._marked_by(reading, actions))
        written = one_array(actions["path"])
        locations = file_locations(written, root=self._files.store.root)
        return pc.and_(is_marked, pc.invert(pc.is_in(locations, self._without_rows)))

    def _marked_by(self, reading: VersionReading, actions: pa.Table) -> pa.BooleanArray:
        assert reading.condition is not None
        count = actions.num_rows
        stated = [
            column
            for column in reading.columns.values()
            if column is not None
            and not column.is_partition
            and to_arrow_type(column.kind) is not None
        ]
        statistics = file_statistics(actions, stated)
        values: dict[Names, list[pa.Array]] = {}
        for name, column in reading.columns.items():
            if column is None or (not column.is_partition and column not in stated):
                values[name] = [pa.nulls(count, pa.string())]
            elif column.is_partition:
                values[name] = [_partition_values(actions, column)]
            else:
                at = stated.index(column)
                values[name] = [
                    one_array(statistics[f"{at} {part}"]) for part in ("least", "greatest")
                ]
        is_marked = pa.array([False] * count, pa.bool_())
        for choice in islice(product(*values.values()), _MOST_COMBINATIONS):
            rows = dict(zip(values, choice, strict=True))
            try:
                is_marked = pc.or_(is_marked, reading.condition.matching_values(rows))
                is_marked = pc.or_(is_marked, reading.near_matches(rows))
            except pa.ArrowException:
                # The values are not of this type: versions of another reading wrote them.
                continue
        return is_marked


def _partition_values(actions: pa.Table, column: Column) -> pa.Array:
    texts = one_array(pc.map_lookup(actions["partitionValues"], column.physical[0], "first"))
    try:
        return parse_partition_values(texts, column.kind, zone=UTC).values
    except CorruptTableError:
        # Versions of another reading wrote them.
        return pa.nulls(len(texts), to_arrow_type(column.kind))
