"""Finds the files that can contain rows of a table, and what each of them is to the table.

The folder is listed, so files that no version refers to are found as well. The log says what the
others are: live, removed, held or change data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import instant
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.erasure_report import Place
from delta_maintenance.operations.erasure_report.versions import (
    KNOWN_FILES,
    OpenableVersions,
    read_versions,
    with_all,
)
from delta_maintenance.operations.holds.hold import Hold, Holds
from delta_maintenance.operations.vacuum import LEAST_RETENTION
from delta_maintenance.protocol.actions.paths import file_locations
from delta_maintenance.protocol.columns import one_array
from delta_maintenance.protocol.statistics.bounds import Mask
from delta_maintenance.protocol.vacuum import ProtectedPaths
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.listing import STATUSES, EntryKind
from delta_maintenance.table.data.row_reader import FILES
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, relisting
from delta_maintenance.table.read.snapshot import Snapshot

_CHANGE_DATA = "_change_data/"
_WITHOUT_ROWS = r"(?:^|/)(?:deletion_vector_[0-9a-f-]{36}\.bin|\.[^/]*\.crc)$"
"""Deletion vectors contain positions, and Hadoop's checksums contain checksums."""
_ADD = ("path", "partitionValues", "size", "deletionVector")
_TOMBSTONE = ("path", "partitionValues", "size", "deletionTimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """A file that can contain rows."""

    place: Place
    path: str
    """Relative to the table's root, as the store names it."""
    size: int
    row: pa.Table
    """One row with the schema `row_reader.FILES`; the path is that of the log."""
    number: int | None = None
    """The position among the listed files; None for a file that is not listed."""
    ends: datetime | None
    ends_by: str
    version_id: str | None = None
    clone: str | None = None
    """The address of the clone in whose folder it is; None for the table itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededFiles:
    """The files of a folder that another table needs."""

    holder: str
    paths: ProtectedPaths | None = None
    """None if the other table cannot be read: then it may need any file."""

    def covers(self, paths: pa.StringArray) -> Mask:
        """Marks the files that the other table needs, or may need."""
        return np.ones(len(paths), np.bool_) if self.paths is None else self.paths.covers(paths)


class PlacedFiles:
    """The files of a table at one moment: folder and log.

    Names say nothing of the contents: the files of the log can have any name.
    """

    def __init__(self, snapshot: Snapshot, holds: Holds, *, clone: str | None = None) -> None:
        self.snapshot = snapshot
        self.store: Store = snapshot.log.store
        self.holds = holds
        self.clone = clone
        """The address, if this is a clone of the table that the report is about."""
        self.needed: list[NeededFiles] = []
        """What other tables need in this folder."""
        self.retention = max(snapshot.properties.deleted_file_retention, LEAST_RETENTION)
        self.not_examined: list[str] = []
        self.listed = self._listing()

    def leave_out(self, reason: str) -> None:
        """Records what cannot be examined."""
        where = "" if self.clone is None else f"{self.name}: "
        self.not_examined.append(f"{where}{reason}")

    @property
    def name(self) -> str:
        """What the table is called as a holder of files."""
        return f"table {self.store.root}" if self.clone is None else f"clone {self.clone}"

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return pc.sum(self.listed["size"]).as_py() or 0

    @cached_property
    def versions(self) -> OpenableVersions:
        """The versions that can be opened. Reads the log once."""
        return relisting(lambda: read_versions(self.snapshot))

    def files(self) -> Iterator[PlacedFile]:
        """Yields every file of the folder that can have rows, with its place, ordered by path."""
        live = _Lookup(self._of_version(self.snapshot), self.listed, self.store.root)
        removed = _Lookup(self._removed_files(), self.listed, self.store.root)
        held = [
            (hold, _Lookup(self._of_version(hold.snapshot), self.listed, self.store.root))
            for hold in self.holds.holds
        ]
        paths = one_array(self.listed["path"])
        needed = [(need.holder, need.covers(paths)) for need in self.needed]
        for number in range(self.listed.num_rows):
            listed = self.listed.slice(number, 1).to_pylist()[0]
            yield self._place(
                _Listed(**listed, number=number),
                live=live.row(number),
                removed=removed.row(number),
                held=[(hold, row) for hold, at in held if (row := at.row(number)) is not None],
                holder=next((holder for holder, covers in needed if covers[number]), None),
            )

    def _place(
        self,
        listed: _Listed,
        *,
        live: pa.Table | None,
        removed: pa.Table | None,
        held: Sequence[tuple[Hold, pa.Table]],
        holder: str | None,
    ) -> PlacedFile:
        def build(
            place: Place, row: pa.Table, ends_by: str, ends: datetime | None = None
        ) -> PlacedFile:
            return PlacedFile(
                place=place,
                path=listed.path,
                size=listed.size,
                row=row,
                number=listed.number,
                ends=ends,
                ends_by=ends_by,
                clone=self.clone,
            )

        if live is not None:
            return build("live", live, "the rows must be deleted, then purged, then vacuumed")
        if holder is not None:
            rows = (removed, *(row for _, row in held))
            known_row = next((row for row in rows if row is not None), None)
            return build("held", self._row(listed, known_row), f"held by {holder}, then a vacuum")
        if not held and removed is not None:
            # A reader that needs all later versions also needs what they removed.
            held = [(hold, removed) for hold in self.holds.holds if hold.last is None]
        since_ms = listed.modified_ms or 0
        if removed is not None:
            since_ms = max(since_ms, removed["deletionTimestamp"][0].as_py() or 0)
        ends = instant(since_ms) + self.retention if since_ms else None
        if held:
            # A hold without an end is the last one to end.
            hold, row = max(held, key=lambda each: end_of(each[0]))
            until = None if hold.until is None or ends is None else max(hold.until, ends)
            return build(
                "held", self._row(listed, row), f"held by {hold.holder}, then a vacuum", until
            )
        place: Place = "removed" if removed is not None else "unreferenced"
        if listed.path.startswith(_CHANGE_DATA):
            place = "change-data"
        row = self._row(listed, removed)
        if ends is None:
            return build(place, row, "a vacuum keeps it, because its age is unknown")
        return build(place, row, "the next vacuum after this time", ends)

    def _row(self, listed: _Listed, known_row: pa.Table | None) -> pa.Table:
        if known_row is None:
            return self.describe_file(listed.path, listed.size)
        return known_row.select(FILES.names)

    def _listing(self) -> pa.Table:
        listed = []
        for batch in self.store.list_tree():
            inside = pc.starts_with(batch["path"], f"{LOG_DIRECTORY}/")
            entries = batch.filter(pc.invert(inside))
            links = pc.sum(pc.equal(entries["kind"], int(EntryKind.OTHER))).as_py()
            if links:
                self.leave_out(f"{count_text(links, 'link')} or special files")
            files = entries.filter(pc.equal(entries["kind"], int(EntryKind.FILE)))
            empty = pc.match_substring_regex(files["path"], _WITHOUT_ROWS)
            listed.append(files.filter(pc.invert(empty)).select(STATUSES.names))
        files = pa.concat_tables([STATUSES.empty_table(), *listed])
        if files["size"].null_count or files["modified_ms"].null_count:
            # A listing of directories contains only names.
            files = self.store.statuses(files["path"])
        return files.sort_by("path")

    def _of_version(self, snapshot: Snapshot) -> pa.Table:
        def read(sound: Snapshot) -> list[pa.Table]:
            return [
                with_all(batch.adds, FILES)
                for batch in sound.log.scan(fields={"add": _ADD, "remove": ()})
            ]

        return pa.concat_tables([FILES.empty_table(), *snapshot.avoiding_damage(read)])

    def _removed_files(self) -> pa.Table:
        def tombstones(sound: Snapshot) -> list[pa.Table]:
            return [
                with_all(batch.tombstones, KNOWN_FILES)
                for batch in sound.log.scan(fields={"add": (), "remove": _TOMBSTONE})
            ]

        # The first row of a file counts: the newest remove, or else an add.
        former = with_all(self.versions.uses, KNOWN_FILES)
        removes = [self.versions.removes, *self.snapshot.avoiding_damage(tombstones)]
        return pa.concat_tables([*removes, former])

    def describe_file(self, path: str, size: int) -> pa.Table:
        """Returns a file that the log does not know. Its partition values are those in its path."""
        folders = path.split("/")[:-1]
        values = [
            (unquote(name), None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value))
            for folder in folders
            for name, sign, value in [folder.partition("=")]
            if sign
        ]
        return pa.table(
            {
                "path": [quote(path)],
                "partitionValues": [values],
                "size": [size],
                "deletionVector": [None],
            },
            schema=FILES,
        )


def has_no_rows(path: str) -> bool:
    """Whether the name of a file is that of a deletion vector or of a checksum."""
    return re.search(_WITHOUT_ROWS, path) is not None


@dataclass(frozen=True, slots=True)
class _Listed:
    path: str
    size: int
    modified_ms: int | None
    number: int


class _Lookup:
    """The first row of each listed file among some actions."""

    def __init__(self, rows: pa.Table, listed: pa.Table, root: str) -> None:
        self._rows = rows
        locations = [file_locations(chunk, root=root) for chunk in rows["path"].chunks]
        all_locations = pa.concat_arrays([pa.array([], pa.binary()), *locations])
        paths = one_array(listed["path"]).cast(pa.binary())
        self._at = pc.fill_null(pc.index_in(paths, value_set=all_locations), -1).to_numpy()

    def row(self, number: int) -> pa.Table | None:
        """Returns the row of the listed file with a number."""
        at = int(self._at[number])
        return None if at < 0 else self._rows.slice(at, 1)


def end_of(hold: Hold) -> datetime:
    """Returns the end of a hold, for their order: one without an end is the last."""
    return hold.until or datetime.max.replace(tzinfo=UTC)
