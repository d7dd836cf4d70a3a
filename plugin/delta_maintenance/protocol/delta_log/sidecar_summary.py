"""Summaries of sidecars in their `tags`, which make it unnecessary to open the files.

The protocol leaves `sidecar.tags` to the writer ("Sidecar File Information"). This library writes
one tag, and the same text into the footer of the file. A later checkpoint uses it to take over a
sidecar unread, and `fsck` compares it with the content.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote, unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.model import Sidecar
from delta_maintenance.protocol.actions.paths import written_locations
from delta_maintenance.protocol.columns.key_hash import Hashes, hash_texts
from delta_maintenance.protocol.columns.membership_filter import MembershipFilter
from delta_maintenance.protocol.delta_log.tally import Tally

SUMMARY_TAG = "delta-maintenance.summary"
"""The tag of a sidecar, and the key in the metadata of its footer."""

LOCATION_BYTES = 48
"""The number of bytes that are kept of the first and the last location: enough to distinguish
partitions.
"""

_NO_TIME = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """A range of bytes in a file."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSummary:
    """The summary of one sidecar."""

    tally: Tally
    first_location: bytes
    """The smallest and the largest location of its files (`paths.written_locations`), truncated to
    `LOCATION_BYTES` bytes; both empty without files.
    """
    last_location: bytes
    deleted_first: int | None
    """The smallest and the largest deletion timestamp of its tombstones, in milliseconds since
    1970-01-01 UTC; None without tombstones.

    A tombstone without a timestamp counts as older than all others.
    """
    deleted_last: int | None
    filter: ByteRange | None
    """The byte range of the `MembershipFilter` of the locations."""

    def to_tags(self, name: str) -> dict[str, str]:
        """Returns the value of `sidecar.tags`; `name` is the bare name of the file."""
        tally = self.tally
        values: dict[str, Any] = {
            "adds": tally.adds,
            "tombstones": tally.tombstones,
            "bytes": tally.size,
            "keys": f"{tally.keys:016x}",
            "locations": [quote(self.first_location), quote(self.last_location)],
        }
        if self.deleted_first is not None and self.deleted_last is not None:
            values["deleted"] = [self.deleted_first, self.deleted_last]
        if self.filter is not None:
            values["filter"] = [self.filter.offset, self.filter.length]
        values["check"] = _check(name, values)
        return {SUMMARY_TAG: json.dumps(values, separators=(",", ":"))}

    @classmethod
    def from_tags(cls, tags: Mapping[str, str] | None, name: str) -> Self | None:
        """Parses the tags of the file with this name.

        None if the tags were written by another writer, are invalid, or belong to another file.
        """
        text = (tags or {}).get(SUMMARY_TAG)
        if text is None:
            return None
        try:
            values = json.loads(text)
            if values.pop("check") != _check(name, values):
                return None
            counts = [values[name] for name in ("adds", "tombstones", "bytes")]
            first, last = values["locations"]
            deleted, found = values.get("deleted"), values.get("filter")
            numbers = [*counts, *(deleted or ()), *(found or ())]
            if not all(type(number) is int and abs(number) < 2**63 for number in numbers):
                return None
            if min(counts) < 0 or (found is not None and min(found) < 0):
                return None
            adds, tombstones, size = counts
            return cls(
                tally=Tally(adds, tombstones, size, int(values["keys"], 16) % 2**64),
                first_location=unquote_to_bytes(first),
                last_location=unquote_to_bytes(last),
                deleted_first=None if deleted is None else deleted[0],
                deleted_last=None if deleted is None else deleted[1],
                filter=None if found is None else ByteRange(offset=found[0], length=found[1]),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return None


def bare_name(sidecar: Sidecar) -> str:
    """The bare name of the file, as in the summary."""
    return sidecar.path.rpartition("/")[2]


def stated_summary(sidecar: Sidecar) -> SidecarSummary | None:
    """Returns the summary in the tags of a sidecar if it is valid."""
    return SidecarSummary.from_tags(sidecar.tags, bare_name(sidecar))


def _check(name: str, values: Mapping[str, Any]) -> int:
    """Returns a checksum of the tag. Readers do not open the file, so damage must be detectable in
    the tag.
    """
    return zlib.crc32(json.dumps([name, values], sort_keys=True).encode())


@dataclass(slots=True)
class SummaryBuilder:
    """Builds the summary of a sidecar from batches. Stores eight bytes for each file action."""

    tally: Tally = field(default_factory=Tally)
    _first: bytes | None = None
    _last: bytes | None = None
    _deleted: tuple[int, int] | None = None
    _hashes: list[Hashes] = field(default_factory=list)

    def include(
        self, adds: pa.Table, tombstones: pa.Table, *, add_hashes: Hashes | None = None
    ) -> None:
        """Adds a batch with the columns of a snapshot's scan.

        `add_hashes` are the hashes of the keys of its adds, if already computed.
        """
        self.tally.include(adds, tombstones, add_hashes=add_hashes)
        self._include_locations(adds, add_hashes)
        self._include_locations(tombstones, None)
        self._include_deletions(tombstones)

    def filter(self) -> MembershipFilter:
        """The filter of all locations."""
        return MembershipFilter.of(np.concatenate([np.empty(0, np.uint64), *self._hashes]))

    def summary(self, byte_range: ByteRange | None) -> SidecarSummary:
        """Returns the summary, given the byte range of the filter in the file."""
        return SidecarSummary(
            tally=self.tally,
            first_location=self._first or b"",
            last_location=self._last or b"",
            deleted_first=None if self._deleted is None else self._deleted[0],
            deleted_last=None if self._deleted is None else self._deleted[1],
            filter=byte_range,
        )

    def _include_locations(self, batch: pa.Table, key_hashes: Hashes | None) -> None:
        if not batch.num_rows:
            return
        paths = pa.concat_arrays(batch["path"].chunks)
        locations = written_locations(paths)
        if (
            key_hashes is not None
            and _are_keys(batch)
            and locations.equals(paths.cast(pa.binary()))
        ):
            self._hashes.append(key_hashes)
        else:
            self._hashes.append(hash_texts(locations))
        found = pc.min_max(pc.binary_slice(locations, 0, LOCATION_BYTES)).as_py()
        self._first = found["min"] if self._first is None else min(self._first, found["min"])
        self._last = found["max"] if self._last is None else max(self._last, found["max"])

    def _include_deletions(self, tombstones: pa.Table) -> None:
        if not tombstones.num_rows:
            return
        first = last = _NO_TIME
        if "deletionTimestamp" in tombstones.column_names:
            times = pc.min_max(pc.fill_null(tombstones["deletionTimestamp"], _NO_TIME)).as_py()
            first, last = times["min"], times["max"]
        before = self._deleted or (first, last)
        self._deleted = min(first, before[0]), max(last, before[1])


def _are_keys(batch: pa.Table) -> bool:
    """Whether the keys of a batch are identical to its paths."""
    if "deletionVector" not in batch.column_names:
        return True
    vectors = batch["deletionVector"]
    return bool(vectors.null_count == len(vectors))
