"""Whatever the bytes in the files of a table, a verb raises only our errors, stays below a bound of
memory and time, and prints no line longer than a kilobyte.

The nightly run plays 10,000 cases: `make fuzz`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.cases import play
from tests.fuzz.tables import tables

CASES = int(os.environ.get("DELTA_MAINTENANCE_FUZZ_CASES", "300"))
_SLICES = 10


@pytest.mark.parametrize("part", range(_SLICES))
def test_any_damage_ends_in_one_of_our_errors(part: int, corpus: Path) -> None:
    candidates = tables(corpus)
    findings = [
        f"seed {seed}: {line}"
        for seed in range(part, CASES, _SLICES)
        for line in play(seed, candidates, verbs=1).lines()
    ]
    assert not findings, "\n".join(findings[:20])
