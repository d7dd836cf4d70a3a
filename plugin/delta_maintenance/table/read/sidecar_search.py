"""Finds the sidecars of a checkpoint that may contain files which later commits name.

Sidecars of this library have summaries: most are excluded by their first and last location, others
by a filter, which is read by its range in the file. Sidecars of other writers are searched by their
paths. A sidecar without any of the files may be found by mistake. A sidecar with one of them is
always found if its tags and its filter are right; `files.removed_first` helps to detect wrong ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.model import Sidecar
from delta_maintenance.protocol.actions.paths import locations_to_find, written_locations
from delta_maintenance.protocol.columns import Hashes, MembershipFilter, hash_texts
from delta_maintenance.protocol.delta_log.sidecars import (
    LOCATION_BYTES,
    SidecarSummary,
    SummaryBuilder,
    stated_summary,
)
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.streams import StreamingPool
from delta_maintenance.table.data.parquet.files import read_range
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, UnusableCheckpointError

SUMMARISED = {
    "add": ("path", "deletionVector", "size"),
    "remove": ("path", "deletionVector", "deletionTimestamp"),
}
"""The fields from which a summary is computed, by action."""


@dataclass(frozen=True, slots=True, eq=False)
class NamedLocations:
    """The locations of some files, in every spelling that a sidecar may use."""

    prefixes: npt.NDArray[np.bytes_]
    """The first `LOCATION_BYTES` bytes of each location, ascending."""
    hashes: Hashes
    """The hashes of the locations, in the same order."""

    @classmethod
    def of(cls, paths: Collection[pa.StringArray], *, root: str) -> Self:
        """Computes the locations of all these paths."""
        location_chunks = [locations_to_find(chunk, root=root) for chunk in paths]
        locations = pa.concat_arrays([*location_chunks, pa.array([], pa.binary())])
        prefixes = _prefixes(locations)
        order = np.argsort(prefixes, kind="stable")
        return cls(prefixes[order], hash_texts(locations)[order])

    def between(self, lowest: bytes, highest: bytes) -> Hashes:
        """Returns the hashes of the locations from the first to the last."""
        start = int(np.searchsorted(self.prefixes, lowest[:LOCATION_BYTES], side="left"))
        end = int(np.searchsorted(self.prefixes, highest[:LOCATION_BYTES], side="right"))
        return self.hashes[start:end]


@dataclass(frozen=True, slots=True)
class SearchedSidecar:
    """One sidecar of a checkpoint, read only as far as necessary."""

    sidecar: Sidecar
    path: str
    """Relative to the table root."""
    summary: SidecarSummary
    """The summary in its tags, or else computed from its columns."""
    is_named: bool
    """Whether it may contain one of the files."""


def search_sidecars(
    store: Store, checkpoint: Checkpoint, locations: NamedLocations
) -> tuple[SearchedSidecar, ...]:
    """Searches all sidecars of a checkpoint, in order.

    Raises `UnusableCheckpointError`, which names a missing or unreadable sidecar.
    """

    def search(number: int) -> SearchedSidecar:
        sidecar, path = checkpoint.sidecars[number], checkpoint.sidecar_paths[number]
        summary = stated_summary(sidecar)
        is_named = None if summary is None else may_name(store, path, summary, locations)
        if summary is None or is_named is None:
            return _search_sidecar(checkpoint, sidecar, path, locations)
        return SearchedSidecar(sidecar, path, summary, is_named)

    numbers = range(len(checkpoint.sidecars))
    if store.is_near:
        return tuple(search(number) for number in numbers)
    with StreamingPool(store.parallel_reads) as pool:
        futures = [pool.submit(search, number) for number in numbers]
        return tuple(future.result() for future in futures)


def may_name(
    store: Store, path: str, summary: SidecarSummary, locations: NamedLocations
) -> bool | None:
    """Returns whether a sidecar may contain one of the files, judged by its summary and its filter.

    None if only its paths can answer that.
    """
    hashes = locations.between(summary.first_location, summary.last_location)
    if not summary.tally.actions or not len(hashes):
        return False
    membership = read_filter(store, path, summary)
    return None if membership is None else bool(membership.may_hold(hashes).any())


def read_filter(store: Store, path: str, summary: SidecarSummary) -> MembershipFilter | None:
    """Returns the filter of a sidecar; None if it has no valid one."""
    within = summary.filter
    if within is None or within.length > MembershipFilter.most_bytes(summary.tally.actions):
        return None
    try:
        with store.open(path) as file:
            membership = MembershipFilter.from_bytes(read_range(file, within.offset, within.length))
    except FileNotFoundError:
        raise UnusableCheckpointError(f"{path} no longer exists") from None
    except (CorruptTableError, pa.ArrowInvalid):
        return None
    # The filter of another sidecar would give false negatives for files of this one.
    return membership if len(membership.low) <= summary.tally.actions else None


def _search_sidecar(
    checkpoint: Checkpoint, sidecar: Sidecar, path: str, locations: NamedLocations
) -> SearchedSidecar:
    contents, is_named = SummaryBuilder(), False
    keys = MapKeys(partition_columns=frozenset())
    hashes = np.unique(locations.hashes)
    for batch in checkpoint.file_actions(keys=keys, fields=SUMMARISED, only={path}):
        contents.include(batch.adds, batch.removes)
        if not is_named:
            is_named = _holds(hashes, [*batch.adds["path"].chunks, *batch.removes["path"].chunks])
    summary = contents.summary(None)
    return SearchedSidecar(sidecar, path, summary, is_named)


def _holds(hashes: Hashes, paths: Sequence[pa.StringArray]) -> bool:
    return any(bool(np.isin(hash_texts(written_locations(chunk)), hashes).any()) for chunk in paths)


def _prefixes(locations: pa.BinaryArray) -> npt.NDArray[np.bytes_]:
    cut = pc.binary_slice(locations, 0, LOCATION_BYTES)
    padded = np.zeros((len(cut), LOCATION_BYTES), np.uint8)
    if len(cut):
        offsets = np.frombuffer(cut.buffers()[1], np.int32, len(cut) + 1, cut.offset * 4)
        text = np.frombuffer(cut.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        padded[np.arange(LOCATION_BYTES) < np.diff(offsets)[:, None]] = text
    return padded.view(f"S{LOCATION_BYTES}").ravel()
