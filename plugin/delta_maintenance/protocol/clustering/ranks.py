"""Ranks of values: small integers in the order of the values, about equally frequent.

A column has one rank for each of its values if there are few, or one for each of many ranges with
about the same number of rows. Ranks make columns of all types comparable with each other. They
follow a sample; values outside of it get the rank of the range in which they are.

Nulls have the rank 0, and NaN has the highest one. Positive and negative zero are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.clustering.curve import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRanks:
    """The ranks of one column."""

    cuts: pa.Array
    """The least value of each range but the first, ascending and distinct."""
    has_nulls: bool
    """Whether nulls have a rank of their own."""
    has_nan: bool
    """Whether NaN has a rank of its own."""

    @classmethod
    def of(cls, sample: pa.Array, *, bits: int) -> ColumnRanks:
        """Returns ranks of at most this number of bits for a sample of the column."""
        values = comparable(sample)
        is_nan = _is_nan(values)
        finite = (values if is_nan is None else values.filter(pc.invert(is_nan))).drop_null()
        has_nulls = values.null_count > 0
        has_nan = len(finite) + values.null_count < len(values)
        most = (1 << bits) - has_nulls - has_nan
        cuts = pc.unique(finite)
        cuts = cuts.take(pc.array_sort_indices(cuts))[1:]
        if len(cuts) >= most:
            ordered = finite.take(pc.array_sort_indices(finite))
            at = np.arange(1, most, dtype=np.int64) * len(ordered) // max(1, most)
            cuts = pc.unique(ordered.take(pa.array(at, pa.int64())))
            if len(cuts) and cuts[0].equals(ordered[0]):
                cuts = cuts[1:]
        return cls(cuts=cuts, has_nulls=has_nulls, has_nan=has_nan)

    @property
    def count(self) -> int:
        """The number of ranks."""
        return self.has_nulls + len(self.cuts) + 1 + self.has_nan

    @property
    def bits(self) -> int:
        """The number of bits of a rank; 0 if all values have the same rank."""
        return (self.count - 1).bit_length()

    def ranks(self, column: pa.Array) -> Ranks:
        """Returns the rank of each value of an array with the type of the sample."""
        values = comparable(column)
        is_nan = _is_nan(values)
        found = _count_at_most(self.cuts, values) + np.uint64(self.has_nulls)
        if is_nan is not None:
            found[pc.fill_null(is_nan, False).to_numpy(zero_copy_only=False)] = self.count - 1
        if values.null_count:
            found[pc.is_null(values).to_numpy(zero_copy_only=False)] = 0
        return found


def can_be_ranked(kind: pa.DataType) -> bool:
    """Whether values of this type have an order in which files can be clustered."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_temporal(kind)
    )


def comparable(values: pa.Array) -> pa.Array:
    """Returns the values in a form with the same order."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return comparable(values.dictionary_decode())
    if pa.types.is_string(kind):
        return values.cast(pa.binary())
    if pa.types.is_date(kind):
        return values.view(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(kind):
        return values.view(pa.int64())
    if pa.types.is_floating(kind):
        # The sum of negative and positive zero is positive zero.
        return pc.add(values.cast(pa.float64()), 0.0)
    return values.cast(pa.int64()) if pa.types.is_integer(kind) else values


def _is_nan(values: pa.Array) -> pa.BooleanArray | None:
    """Returns which values are NaN; None if there are none."""
    if not pa.types.is_floating(values.type):
        return None
    found = pc.is_nan(values)
    return found if pc.any(found).as_py() else None


def _count_at_most(cuts: pa.Array, values: pa.Array) -> Ranks:
    """Returns the number of cuts that are at most each value; any number for null and NaN."""
    if not len(cuts):
        return np.zeros(len(values), np.uint64)
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        filled = pc.fill_null(values, pa.scalar(0, values.type)) if values.null_count else values
        places = np.searchsorted(cuts.to_numpy(), filled.to_numpy(), side="right")
        below: Ranks = places.astype(np.uint64)
        return below
    # Each distinct value once, because comparing texts and decimals is slow. A cut comes before an
    # equal value, because the order of equal elements is kept.
    encoded = values.dictionary_encode()
    if not len(encoded.dictionary):
        return np.zeros(len(values), np.uint64)
    order = pc.array_sort_indices(pa.concat_arrays([cuts, encoded.dictionary])).to_numpy()
    is_cut = order < len(cuts)
    distinct = np.empty(len(encoded.dictionary), np.uint64)
    distinct[order[~is_cut] - np.uint64(len(cuts))] = np.cumsum(is_cut)[~is_cut]
    places = pc.fill_null(encoded.indices, 0).to_numpy()
    ranks: Ranks = distinct[places]
    return ranks
