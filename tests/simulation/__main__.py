"""Many seeds of the simulation: `python -m tests.simulation --first 0 --cases 10000 --log FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tests.simulation.run import play
from tests.support.suite import seed_runs


def _prepare() -> seed_runs.Play:
    def lines(seed: int) -> Iterable[str]:
        play(seed)
        return ()

    return lines


if __name__ == "__main__":
    sys.exit(seed_runs.main("tests.simulation", _prepare, cases=10_000))
