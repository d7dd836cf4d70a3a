"""The choice within a budget, night after night, beside the rules of others."""

from __future__ import annotations

import pytest

from benchmarks.scale.budget import DAYS, MOST_INTERVALS, RULES, amoro_waiting, ours, play
from tests.support.suite.play import some

TABLES = 150


@pytest.mark.cases
@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
def test_no_table_waits_too_long_and_readers_gain_most(share: float) -> None:
    for seed in some(range(200), 2):
        nothing = play(seed, None, 0, TABLES)
        whole = play(seed, amoro_waiting, float("inf"), TABLES)
        seconds = share * whole.seconds / DAYS
        gains = {}
        for name, rule in RULES.items():
            played = play(seed, rule, seconds, TABLES)
            gains[name] = nothing.opened - played.opened
            if "ours" in name:
                assert played.longest_wait <= MOST_INTERVALS, (seed, name)
                assert played.never == 0 and played.most_seconds < 2 * seconds, (seed, name)
        assert gains["ours"] == max(gains.values()), (seed, gains)


def test_the_rules_of_others_leave_tables_unmerged() -> None:
    """The simulation shows what is known of them, so that a choice without it proves something."""
    whole = play(0, amoro_waiting, float("inf"), TABLES)
    seconds = 0.1 * whole.seconds / DAYS
    assert play(0, ours, seconds, TABLES).never == 0
    assert all(
        play(0, RULES[name], seconds, TABLES).never > 0 for name in RULES if "ours" not in name
    )
