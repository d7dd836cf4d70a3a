"""The nightly run, `make fuzz`: many cases, four verbs each."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

from delta_maintenance.operations.core import operations
from tests.fuzz.cases import play
from tests.fuzz.tables import tables
from tests.support.suite import seed_runs

_VERBS = 4
_MOST_MEMORY = 5 << 30
_CORPUS = Path(__file__).parents[3] / "shared" / "tables"


def _prepare() -> seed_runs.Play:
    # Limit the memory, so that a defect does not stop the machine.
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    candidates = tables(Path(os.environ.get("DELTA_MAINTENANCE_CORPUS", _CORPUS)))

    def lines(seed: int) -> Iterable[str]:
        return play(seed, candidates, verbs=_VERBS).lines()

    return lines


if __name__ == "__main__":
    # Processes inherit what is imported before they are forked.
    operations()
    sys.exit(seed_runs.main("tests.fuzz", _prepare, cases=10_000))
