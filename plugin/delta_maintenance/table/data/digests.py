"""The digests of rows that are read from sources and from new files, which must be equal.

Rows that keep their order are proved by a digest of their sequence, which costs least. If deleted
rows are left out, rows are sorted, or rows are taken out of a new file later, sums are needed: the
writer filters rows, and sums subtract those of deleted rows, so that neither relies on the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_maintenance.protocol.data_files.ordered_digest import OrderedDigest, OrderedSum
from delta_maintenance.protocol.data_files.row_digest import LiveRowSums, RowDigest, RowSums

RowsSum: TypeAlias = RowSums | OrderedSum
"""The digest of rows, or only their number."""
DigestKind = Literal["in-order", "sums", "counts"]

_NONE_DELETED = np.zeros(0, np.int64)


class RowsDigest:
    """The digest of the rows that are added. Not thread-safe."""

    def __init__(
        self, schema: pa.Schema, partition: Mapping[str, str | None], kind: DigestKind
    ) -> None:
        """`partition` are the partition values of the rows in the log."""
        self.kind = kind
        self._rows = schema, partition
        self._parts: list[RowsDigest] = []
        self.rows = 0
        """The number of live rows so far."""
        self.ordered = OrderedDigest(schema, partition) if kind == "in-order" else None
        """The digest of the sequence. Its columns may be added separately; then `rows` must be
        counted."""
        self._sums = LiveRowSums(RowDigest(schema), partition) if kind == "sums" else None

    def add(self, batch: pa.RecordBatch, deleted: npt.NDArray[np.int64] = _NONE_DELETED) -> None:
        """Adds a batch, without the rows at the positions `deleted`."""
        self.rows += batch.num_rows - len(deleted)
        if self._sums is not None:
            self._sums.add(batch, deleted)
        elif self.ordered is not None:
            if len(deleted):
                raise ValueError("a digest of a sequence cannot leave out rows")
            self.ordered.add(batch)

    def part(self) -> RowsDigest:
        """Returns a digest of sums for another thread, which `total` adds to this one."""
        partial_digest = RowsDigest(*self._rows, self.kind)
        self._parts.append(partial_digest)
        return partial_digest

    def total(self) -> RowsSum:
        """Returns the digest of the rows so far."""
        if self._sums is not None:
            totals = (digest.total() for digest in self._parts)
            return sum(
                (part_total for part_total in totals if isinstance(part_total, RowSums)),
                self._sums.total(),
            )
        return RowSums(rows=self.rows) if self.ordered is None else self.ordered.result(self.rows)


def stated(sums: list[RowsSum]) -> str:
    """Returns the digests of several bins as text: one sum for each algorithm."""
    kinds = sorted(
        {type(rows_sum) for rows_sum in sums}, key=lambda kind: kind.__name__, reverse=True
    )
    return "+".join(
        str(sum((rows_sum for rows_sum in sums if isinstance(rows_sum, kind)), kind()))
        for kind in kinds
    )
