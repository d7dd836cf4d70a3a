"""The amount of testing in a run: the number of random examples, and the selection of cases.

`DELTA_MAINTENANCE_PLAY` is `few` for `make quick`, `some` by default, and `all` for `make nightly`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

Case = TypeVar("Case")

PLAY = os.environ.get("DELTA_MAINTENANCE_PLAY", "some")
_EXAMPLES = {"few": 0.05, "some": 0.4, "all": 5.0}
"""The number of examples of a property, as a multiple of the number in its test."""
if PLAY not in _EXAMPLES:
    raise ValueError(f"DELTA_MAINTENANCE_PLAY={PLAY}: choose one of {', '.join(_EXAMPLES)}")
_DEFAULT_EXAMPLES = 100


def examples(usual: int) -> int:
    """Returns how many examples hypothesis draws, for a test that names `usual`."""
    return max(3, round(usual * _EXAMPLES[PLAY]))


def some(cases: Sequence[Case], most: int) -> list[Case]:
    """Returns at most `most` cases, evenly spread, with the first and the last; or all of them.

    The selection is the same in every run; `make nightly` plays all cases.
    """
    if PLAY == "all" or len(cases) <= most:
        return list(cases)
    step = (len(cases) - 1) / (most - 1)
    return [cases[round(number * step)] for number in range(most)]


# The duration of an example depends on the load of the machine, and no property concerns time.
# A run can be repeated: only `make nightly` draws other examples each time.
settings.register_profile(
    "delta-maintenance",
    deadline=None,
    derandomize=PLAY != "all",
    max_examples=examples(_DEFAULT_EXAMPLES),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("delta-maintenance")
