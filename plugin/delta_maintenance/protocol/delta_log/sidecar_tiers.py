"""Which sidecars of a checkpoint are merged, so that their number stays bounded.

A log-structured merge tree of sidecars: those of at least half the wanted size are full and are
left alone, smaller ones belong to tiers by size. Fewer than `FANOUT` of each tier stay; where there
would be more, all of the tier become one, which belongs to a higher tier. So an action is written
anew once for each tier at most, and a checkpoint of `n` actions of one kind has at most

    2 * n / size + (FANOUT - 1) * tiers(size) + 2

sidecars of that kind, the last two for what is left of cutting and merging.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

FANOUT = 4
SMALLEST_TIER = 1024
"""Sidecars of fewer actions are written anew whenever a new one is written: that costs about as
much as naming them."""

_FEWEST_PER_SIDECAR = 16_384
_MOST_SIDECARS = 64
"""Of tables whose sidecars are smaller than wanted: what is rewritten is a small share of them."""


def tiers(size: int) -> int:
    """How many tiers there are below half the wanted size, the smallest one included."""
    half = size / 2
    return next(n for n in count(1) if SMALLEST_TIER * FANOUT ** (n - 1) >= half)


def most_sidecars(actions: int, size: int) -> int:
    """The largest number of sidecars of one kind that a checkpoint may have."""
    return 2 * actions // size + (FANOUT - 1) * tiers(size) + 2


def sidecar_size(actions: int, *, at_most: int) -> int:
    """How many actions a sidecar should hold, in a table of so many.

    Tables of few files have smaller ones: a sidecar that holds a removed file is written anew, and
    that should be a small share of the checkpoint.
    """
    return min(at_most, max(_FEWEST_PER_SIDECAR, actions // _MOST_SIDECARS))


def chosen_for_merge(sizes: Sequence[int], *, new: int, size: int) -> list[int]:
    """The positions of the untouched sidecars that are merged with `new` actions of their kind.

    `sizes` are the numbers of actions in each. Empty where nothing is new and nothing needs to be
    merged.
    """
    tier_of = [_tier(each, size) for each in sizes]
    chosen: list[int] = []
    total = new
    for tier in range(tiers(size)):
        here = [at for at, found in enumerate(tier_of) if found == tier]
        joined = total > 0 and _tier(total, size) == tier
        limit = 1 if tier == 0 and (total > 0 or len(here) > 1) else FANOUT
        if len(here) and len(here) + joined >= limit:
            chosen.extend(here)
            total += sum(sizes[at] for at in here)
    return sorted(chosen)


def _tier(actions: int, size: int) -> int:
    """The number of the tier of a sidecar; that of full ones is behind all others."""
    if actions >= size / 2:
        return tiers(size)
    return next(n for n in count() if actions < SMALLEST_TIER * FANOUT**n)
