"""The number and the cost of sidecars after thousands of incremental checkpoints."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.delta_log.sidecars import (
    FANOUT,
    SMALLEST_TIER,
    chosen_for_merge,
    most_sidecars,
    sidecar_size,
    tiers,
)


class Sidecars:
    """The numbers of actions in the sidecars of one kind, checkpoint after checkpoint."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.actions: list[int] = []
        self.written = 0

    def checkpoint(self, new: int, removed_from: dict[int, int] | None = None) -> None:
        """`removed_from` tells how many actions each touched sidecar loses."""
        removed_from = removed_from or {}
        untouched = [n for at, n in enumerate(self.actions) if at not in removed_from]
        touched = [self.actions[at] - gone for at, gone in removed_from.items()]
        merged = chosen_for_merge(untouched, new_actions=new, size=self.size)
        small = self._rolled([new, *(untouched[at] for at in merged)], at_least=self.size)
        large = self._rolled(touched, at_least=(self.size + 1) // 2)
        self.written += sum(small) + sum(large)
        kept = [n for at, n in enumerate(untouched) if at not in set(merged)]
        self.actions = [*kept, *small, *large]

    def _rolled(self, sources: list[int], *, at_least: int) -> list[int]:
        """Returns the sidecars that are completed when full, and between two sources when full
        enough.
        """
        done, under_way = [], 0
        for source in sources:
            if under_way >= at_least:
                done.append(under_way)
                under_way = 0
            under_way += source
            while under_way >= self.size:
                done.append(self.size)
                under_way -= self.size
        return [*done, under_way] if under_way else done


@pytest.mark.parametrize(
    ("size", "commits"), [(50_000, 10_000), (16_384, 10_000), (3000, 2000), (50, 100), (1, 30)]
)
def test_their_number_is_bounded_over_ten_thousand_commits(size: int, commits: int) -> None:
    chance = random.Random(size)
    sidecars = Sidecars(size)
    for _ in range(commits):
        touched = {}
        if sidecars.actions and chance.random() < 0.1:
            at = chance.randrange(len(sidecars.actions))
            touched[at] = min(chance.choice((1, 5, 5000)), sidecars.actions[at])
        sidecars.checkpoint(chance.choice((0, 1, 10, 300)), touched)
        total = sum(sidecars.actions)
        assert len(sidecars.actions) <= most_sidecars(total, size)
    assert len(sidecars.actions) > 3


def test_appends_are_rewritten_once_per_tier() -> None:
    sidecars = Sidecars(50_000)
    for _ in range(2000):
        sidecars.checkpoint(SMALLEST_TIER)
    assert sidecars.written <= 2000 * SMALLEST_TIER * (tiers(50_000) + 1)
    assert len(sidecars.actions) <= most_sidecars(2000 * SMALLEST_TIER, 50_000)


@given(
    st.lists(st.integers(1, 60_000), max_size=60),
    st.integers(0, 60_000),
    st.sampled_from([50_000, 16_384, 100]),
)
def test_each_tier_keeps_fewer_sidecars_than_the_fan_out(
    sizes: list[int], new: int, size: int
) -> None:
    chosen = set(chosen_for_merge(sizes, new_actions=new, size=size))
    left = [n for at, n in enumerate(sizes) if at not in chosen]
    small = [n for n in left if n < size / 2]
    assert not any(sizes[at] >= size / 2 for at in chosen), "full ones are left alone"
    assert len(small) <= (FANOUT - 1) * tiers(size)
    if new:
        assert not [n for n in small if n < SMALLEST_TIER]


def test_without_new_or_small_sidecars_nothing_is_merged() -> None:
    assert chosen_for_merge([50_000, 30_000, 2000], new_actions=0, size=50_000) == []
    assert chosen_for_merge([10], new_actions=0, size=50_000) == []
    assert chosen_for_merge([10, 20], new_actions=0, size=50_000) == [0, 1]
    assert chosen_for_merge([], new_actions=5, size=50_000) == []


def test_small_tables_have_small_sidecars() -> None:
    assert sidecar_size(0, at_most=50_000) == 16_384
    assert sidecar_size(10_000_000, at_most=50_000) == 19_531
    assert sidecar_size(50_000_000, at_most=50_000) == 50_000
    assert sidecar_size(10_000_000, at_most=7) == 7
