"""The threads of a run on one machine: each on a bin of its own, and then on those of others."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from delta_maintenance.operations.rewriting import engine
from delta_maintenance.operations.rewriting.engine import BinOutcome, LocalEngine
from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.data.bins import Bin, RewriteSpec
from delta_maintenance.table.parallel import IdleWorkers


@pytest.mark.parametrize(
    ("workers", "bins", "free"), [(3, 1, 2), (3, 2, 2), (2, 3, 1), (2, 2, 0), (1, 2, 0)]
)
def test_workers_without_a_bin_help_those_that_have_one(
    workers: int, bins: int, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bin of a run sees as many idle workers as there are other workers without a bin."""
    found: list[int] = []
    counted = threading.Event()

    def rewritten(
        store: object, work: Bin, *_: object, idle_workers: IdleWorkers, **__: Any
    ) -> BinOutcome:
        if work.number == bins - 1:
            # The other bins are done by now, unless they are being worked on.
            end = time.monotonic() + 120
            count = 0
            while count < free and time.monotonic() < end:
                count += idle_workers.take()
                time.sleep(0.001)
            time.sleep(0.02)
            found.append(count + idle_workers.take())
            counted.set()
        elif free == 0 and workers > 1:
            assert counted.wait(120)
        return BinOutcome(number=work.number)

    monkeypatch.setattr(engine, "rewritten", rewritten)
    upcoming = (Bin(number=number, sources=(), reasons=()) for number in range(bins))
    local = LocalEngine(MemoryStore())
    outcomes = list(local.rewrite(upcoming, cast(RewriteSpec, None), workers=workers))
    assert sorted(outcome.number for outcome in outcomes) == list(range(bins))
    assert found == [free]
