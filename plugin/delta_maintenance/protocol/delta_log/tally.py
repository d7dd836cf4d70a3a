"""Order-independent sums over sets of file actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.columns.key_hash import Hashes, hash_texts


@dataclass(slots=True)
class Tally:
    """The sums over a set of file actions; equal sets have equal sums."""

    adds: int = 0
    tombstones: int = 0
    size: int = 0
    """The size of the live data files in bytes."""
    keys: int = 0
    """The sum of the hashes of all logical file keys, modulo 2^64; tombstones are weighted
    differently.
    """

    @classmethod
    def of(cls, adds: pa.Table, tombstones: pa.Table) -> Self:
        """Returns the tally of one batch."""
        tally = cls()
        tally.include(adds, tombstones)
        return tally

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Self:
        """Returns the sum of tallies."""
        tally = cls()
        for one in tallies:
            tally.add(one)
        return tally

    @property
    def actions(self) -> int:
        """The number of adds and tombstones."""
        return self.adds + self.tombstones

    def include(
        self, adds: pa.Table, tombstones: pa.Table, *, add_hashes: Hashes | None = None
    ) -> None:
        """Adds a batch. `add_hashes` are the hashes of its adds' keys, if already computed."""
        self.adds += adds.num_rows
        self.tombstones += tombstones.num_rows
        if adds.num_rows and "size" in adds.column_names:
            self.size += pc.sum(adds["size"]).as_py() or 0
        for batch, weight, hashes in ((adds, 1, add_hashes), (tombstones, 3, None)):
            total = _sum(hashes) if hashes is not None else _sum_of_keys(batch)
            self.keys = (self.keys + weight * total) % 2**64

    def add(self, other: Tally) -> None:
        """Adds another tally."""
        self.adds += other.adds
        self.tombstones += other.tombstones
        self.size += other.size
        self.keys = (self.keys + other.keys) % 2**64


def _sum_of_keys(batch: pa.Table) -> int:
    if not batch.num_rows:
        return 0
    return sum(_sum(hash_texts(chunk)) for chunk in logical_file_keys(batch).chunks)


def _sum(hashes: Hashes) -> int:
    return int(np.add.reduce(hashes, dtype=np.uint64))
