"""Tombstones in columns, and what the files that they name still take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import Hashes, hash_texts

Counts = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
_DAY_MS = 86_400_000
_LAST_DAY = 30
_LATEST_MS = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFilesDay:
    """Files that may be vacuumed from one day on."""

    day: int
    """Days since 1970-01-01 UTC."""
    is_last: bool
    """Whether later days count, too."""
    files: int
    bytes: int
    """Of files whose tombstones state a reliable size."""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Some tombstones. Takes 25 bytes for each."""

    paths: Hashes
    deleted_ms: Counts
    """Milliseconds since 1970-01-01 UTC; the largest integer without a deletion time."""
    sizes: Counts
    """Bytes; 0 if the tombstone states no reliable size."""
    with_vector: npt.NDArray[np.bool_]
    """Whether the removed logical file had a deletion vector."""

    @classmethod
    def of(cls, removes: pa.Table) -> Self:
        """Takes over the needed columns of remove actions."""
        paths = [hash_texts(chunk) for chunk in removes["path"].chunks]
        sizes = integers(removes, "size")
        return cls(
            np.concatenate([np.empty(0, np.uint64), *paths]),
            # A tombstone without a deletion timestamp never expires.
            integers(removes, "deletionTimestamp", missing=NEVER),
            np.where(_is_reliable(removes), sizes, 0),
            _has_vector(removes),
        )

    @classmethod
    def join(cls, parts: list[Tombstones]) -> Self:
        """Concatenates tombstones."""
        return cls(
            np.concatenate([np.empty(0, np.uint64), *(part.paths for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.deleted_ms for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.sizes for part in parts)]),
            np.concatenate([np.empty(0, np.bool_), *(part.with_vector for part in parts)]),
        )

    def between(self, first_ms: int, end_ms: int) -> Tombstones:
        """Returns the tombstones of a time, the end excluded."""
        return self._chosen((self.deleted_ms >= first_ms) & (self.deleted_ms < end_ms))

    def count_expired(self, before_ms: int) -> int:
        """Returns the number of tombstones from before a time."""
        return int(np.count_nonzero(self.deleted_ms < before_ms))

    def of_dead_files(self, live_paths: Hashes | None) -> Tombstones:
        """Returns one tombstone, as of the last one, for each file that is not live.

        If the live paths were not read, files whose tombstones have a deletion vector may be live,
        and are left out.
        """
        uncertain = live_paths is None and self.with_vector.any()
        tombstones = self._chosen(~self.with_vector) if uncertain else self
        order = np.argsort(tombstones.paths)
        paths = tombstones.paths[order]
        starts = np.flatnonzero(np.append(True, paths[1:] != paths[:-1])[: len(paths)])
        dead_files = Tombstones(
            paths[starts],
            np.maximum.reduceat(tombstones.deleted_ms[order], starts),
            np.maximum.reduceat(tombstones.sizes[order], starts),
            np.logical_or.reduceat(tombstones.with_vector[order], starts),
        )
        if live_paths is None:
            return dead_files
        # A new deletion vector makes a new logical file of the same data file.
        return dead_files._chosen(np.isin(dead_files.paths, live_paths, invert=True))

    def by_day(self, *, now_ms: int, kept_ms: int) -> tuple[OldFilesDay, ...]:
        """Returns the sums by the day in UTC on which the files may be vacuumed, which is so many
        milliseconds after their deletion. Days from the 30th on are one.
        """
        today = now_ms // _DAY_MS
        # Any number can be in a log.
        days = (np.minimum(self.deleted_ms, _LATEST_MS) + kept_ms) // _DAY_MS - today
        days = days.clip(0, _LAST_DAY)
        files = np.bincount(days, minlength=_LAST_DAY + 1)
        sizes = np.zeros(_LAST_DAY + 1, np.int64)
        np.add.at(sizes, days, self.sizes)
        return tuple(
            OldFilesDay(
                day=today + day,
                is_last=day == _LAST_DAY,
                files=int(files[day]),
                bytes=int(sizes[day]),
            )
            for day in np.flatnonzero(files).tolist()
        )

    def _chosen(self, chosen: npt.NDArray[np.bool_]) -> Tombstones:
        return Tombstones(
            self.paths[chosen],
            self.deleted_ms[chosen],
            self.sizes[chosen],
            self.with_vector[chosen],
        )


def integers(table: pa.Table, name: str, *, missing: int = 0) -> Counts:
    """Returns a column of integers, with `missing` instead of nulls."""
    if name not in table.column_names:
        return np.full(table.num_rows, missing, np.int64)
    column = pc.fill_null(table[name], missing)
    return np.asarray(column.to_numpy(), np.int64)


def _has_vector(removes: pa.Table) -> npt.NDArray[np.bool_]:
    if "deletionVector" not in removes.column_names:
        return np.zeros(removes.num_rows, np.bool_)
    return np.asarray(pc.is_valid(removes["deletionVector"]).to_numpy(), np.bool_)


def _is_reliable(removes: pa.Table) -> npt.NDArray[np.bool_]:
    if "extendedFileMetadata" not in removes.column_names:
        return np.zeros(removes.num_rows, np.bool_)
    column = pc.fill_null(removes["extendedFileMetadata"], False)
    return np.asarray(column.to_numpy(), np.bool_)
