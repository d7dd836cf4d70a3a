"""The choice of sidecars to merge, which keeps their number bounded.

The sidecars form a log-structured merge tree. Sidecars of at least half the target size are full
and never merged; smaller ones belong to tiers by size. A tier keeps fewer than `FANOUT` sidecars:
when it would get more, all of them are merged into one of a higher tier. Each action is therefore
rewritten at most once per tier, and a checkpoint of `n` actions of one kind has at most

    2 * n / size + (FANOUT - 1) * tiers(size) + 2

sidecars of that kind; the last two allow for remainders of cutting and merging.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

FANOUT = 4
SMALLEST_TIER = 1024
"""Sidecars with fewer actions are merged whenever a new one is written, because rewriting them
costs about as much as referring to them.
"""

_FEWEST_PER_SIDECAR = 16_384
_MOST_SIDECARS = 512
"""The number of sidecars for small tables.

Rewriting an action costs about 4 microseconds, and referring to a sidecar about 50, so a removed
file should not rewrite 50,000 other actions.
"""


def tiers(size: int) -> int:
    """The number of tiers below half the target size, including the smallest one."""
    half = size / 2
    return next(n for n in count(1) if SMALLEST_TIER * FANOUT ** (n - 1) >= half)


def most_sidecars(actions: int, size: int) -> int:
    """The maximum number of sidecars of one kind in a checkpoint."""
    return 2 * actions // size + (FANOUT - 1) * tiers(size) + 2


def sidecar_size(actions: int, *, at_most: int) -> int:
    """The target number of actions per sidecar, for a table with this number of actions.

    Small tables get smaller sidecars. A sidecar with a removed file is rewritten, and that should
    be a small share of the checkpoint.
    """
    return min(at_most, max(_FEWEST_PER_SIDECAR, actions // _MOST_SIDECARS))


def chosen_for_merge(sizes: Sequence[int], *, new: int, size: int) -> list[int]:
    """Returns the positions of the untouched sidecars to be merged with `new` actions of their
    kind.

    `sizes` are their numbers of actions. Empty if there are no new actions and no merge is needed.
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
    """The tier of a sidecar; full ones have the highest number."""
    if actions >= size / 2:
        return tiers(size)
    return next(n for n in count() if actions < SMALLEST_TIER * FANOUT**n)
