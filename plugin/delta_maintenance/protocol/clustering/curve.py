"""Curves that order rows by several columns at once.

A row is a point whose coordinates are the ranks of its values. Its key is the position of the point
on a curve; rows with neighbouring keys have similar ranks in every column. All functions work on
whole arrays of points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Curve = Literal["hilbert", "z-order", "linear"]
Ranks = npt.NDArray[np.uint64]

KEY_BITS = 64
"""The number of bits of a key."""


def curve_keys(ranks: Sequence[Ranks], bits: Sequence[int], curve: Curve) -> Ranks:
    """Returns the key of each point.

    `ranks` has one array for each column, and `bits` the number of bits of its ranks, of which at
    most 64 are used together. Columns with fewer bits than others are stretched, so that they are
    divided in the first steps of the curve; columns without bits have no effect. `linear` is the
    lexicographic order of the columns.
    """
    used = [(rank, width) for rank, width in zip(ranks, bits, strict=True) if width]
    if not used:
        return np.zeros(len(ranks[0]) if len(ranks) else 0, np.uint64)
    if curve == "linear" or len(used) == 1:
        key = used[0][0].astype(np.uint64)
        for rank, width in used[1:]:
            key = (key << np.uint64(width)) | rank
        return key
    most = max(width for _, width in used)
    axes = [rank.astype(np.uint64) << np.uint64(most - width) for rank, width in used]
    return interleaved(_hilbert(axes, most) if curve == "hilbert" else axes, most)


def bits_for(columns: int, *, most: int = 16) -> int:
    """Returns the number of bits that the ranks of each of these columns can have in a key."""
    return min(most, KEY_BITS // max(1, columns))


def interleaved(axes: Sequence[Ranks], bits: int) -> Ranks:
    """Returns the bits of all axes in turn, the most significant bit of the first axis first."""
    key = np.zeros(len(axes[0]), np.uint64)
    one = np.uint64(1)
    for bit in range(bits - 1, -1, -1):
        for axis in axes:
            key = (key << one) | ((axis >> np.uint64(bit)) & one)
    return key


def _hilbert(axes: Sequence[Ranks], bits: int) -> list[Ranks]:
    """Transforms coordinates so that their interleaved bits are positions on the Hilbert curve.

    The transformation is that of J. Skilling, "Programming the Hilbert curve" (2004): the rotations
    of each level are undone, from the coarsest level on, and the result is Gray-encoded.
    """
    x = [axis.copy() for axis in axes]
    zero = np.uint64(0)
    for level in range(bits - 1, 0, -1):
        bit, below = np.uint64(1 << level), np.uint64((1 << level) - 1)
        for axis in x:
            is_set = (axis & bit) != zero
            # Inverts the low bits of the first axis, or exchanges them with those of this axis.
            exchanged = np.where(is_set, zero, (x[0] ^ axis) & below)
            x[0] ^= np.where(is_set, below, exchanged)
            if axis is not x[0]:
                axis ^= exchanged
    for before, axis in zip(x, x[1:], strict=False):
        axis ^= before
    flipped = np.zeros_like(x[0])
    for level in range(bits - 1, 0, -1):
        is_set = (x[-1] & np.uint64(1 << level)) != zero
        flipped ^= np.where(is_set, np.uint64((1 << level) - 1), zero)
    return [axis ^ flipped for axis in x]
