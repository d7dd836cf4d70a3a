"""Writers of several engines on S3, in any order, with crashes and lost answers at any request.

`DELTA_MAINTENANCE_SEED` plays one seed; without it, `make nightly` plays 5,000 seeds of each test,
and other runs a sample.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation import quiet_windows
from tests.simulation.s3_writers import CAREFUL, GUARDED, REFUSED, UNDECLARED, S3Run, Setting
from tests.support.suite import play

SEEDS = range(5_000)
KNOWN_SEEDS = (55, 64, 66, 185)
"""Seeds that once failed: a copy was deleted during the verification, the answer about a copy or a
mark was lost, and nobody was told of a commit in doubt."""
_SAMPLE = 60
_MEANINGFUL = 50
"""The number of seeds in which every event occurs."""

pytestmark = pytest.mark.timeout(3600)


def run_seeds(setting: Setting, *, most: int = _SAMPLE) -> Counter[str]:
    """Counts of the events in all seeds of this run."""
    one = os.environ.get("DELTA_MAINTENANCE_SEED")
    numbers = Counter[str]()
    for seed in [int(one)] if one else sorted({*play.some(SEEDS, most), *KNOWN_SEEDS}):
        try:
            numbers += S3Run(seed, setting).numbers()
        except Exception as error:
            again = f"DELTA_MAINTENANCE_SEED={seed} pytest {__file__}"
            raise AssertionError(f"seed {seed}; to play it again: {again}") from error
    return numbers


def test_writers_with_conditional_puts_lose_no_commit_and_make_none_twice(
    count_cases: Callable[[str, int], None],
) -> None:
    numbers = run_seeds(CAREFUL)
    for what, number in numbers.items():
        count_cases(f"writers on S3, {what}", number)
    assert not numbers["overwritten"]
    if numbers["seeds"] >= _MEANINGFUL:
        for what in ("crashes", "failures", "commits of ours", "commits of others"):
            assert numbers[what] > 0, numbers


@pytest.mark.parametrize("setting", [UNDECLARED, REFUSED], ids=["undeclared", "spark"])
def test_nothing_is_committed_beside_delta_spark(setting: Setting) -> None:
    numbers = run_seeds(setting, most=_SAMPLE // 3)
    assert not numbers["commits of ours"]
    assert numbers["overwritten"] or numbers["seeds"] < _SAMPLE // 3


def test_a_commit_that_is_overwritten_after_a_quiet_window_is_named(
    count_cases: Callable[[str, int], None],
) -> None:
    numbers = run_seeds(GUARDED)
    for what, number in numbers.items():
        count_cases(f"quiet windows on S3, {what}", number)
    if numbers["seeds"] >= _MEANINGFUL:
        assert numbers["lost: overwritten"] and numbers["sound: sound"], numbers


@pytest.mark.skipif(play.PLAY != "all", reason="takes ten minutes: make nightly plays it")
def test_the_documentation_has_the_table_of_quiet_windows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "safety" / "other-writers.md").read_text()
    for row in quiet_windows.rows(range(quiet_windows.SEEDS)):
        assert f"{row}\n" in page, "run python -m tests.simulation.quiet_windows"
