"""Random schedules of writers, kept versions, streams, clones, and all that deletes.

`DELTA_MAINTENANCE_SEED` plays one seed, `DELTA_MAINTENANCE_SCHEDULES` this number of seeds, and
`DELTA_MAINTENANCE_STEPS` changes their length.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.promises import STEPS, play

SCHEDULES = int(os.environ.get("DELTA_MAINTENANCE_SCHEDULES", "10"))
_OCCUR = (
    "cleaned log files",
    "expired rows",
    "held files",
    "held log files",
    "remains",
    "vacuumed files",
)

_ENOUGH = 250
"""The number of steps in which each of them is looked for."""
_MANY = 100
"""The number of schedules in which a row that is erased everywhere is looked for."""


@pytest.mark.cases
def test_no_holder_loses_what_it_was_promised(count_cases: Callable[[str, int], None]) -> None:
    told = Counter[str]()
    one = os.environ.get("DELTA_MAINTENANCE_SEED")
    for seed in [int(one)] if one else range(SCHEDULES):
        try:
            told.update(play(seed).told)
        except Exception as error:
            again = f"DELTA_MAINTENANCE_SEED={seed} pytest {__file__}"
            raise AssertionError(f"schedule {seed}; to play it again: {again}") from error
    for what, number in told.items():
        count_cases(f"promises, {what}", number)
    if one is None and SCHEDULES * STEPS >= _ENOUGH:
        assert all(told[what] > 0 for what in _OCCUR), told
        assert told["erased"] > 0 or SCHEDULES < _MANY, told
