"""The threads of a run on one machine: each on a bin of its own, and then on those of others."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import Any, cast

import pyarrow as pa
import pytest

from delta_maintenance.errors import StorageError
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import engine
from delta_maintenance.operations.rewriting.engine import BinOutcome, LocalEngine
from delta_maintenance.operations.rewriting.run import RewriteRun
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data import Bin, RewriteSpec
from delta_maintenance.table.parallel import IdleWorkers
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW


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


def test_a_run_that_ends_early_waits_for_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the garbage collector would close the engine, in any thread and much later."""
    closed: list[bool] = []
    original = LocalEngine.rewrite

    def rewrite(*given: Any, **options: Any) -> Generator[BinOutcome]:
        try:
            yield from original(*given, **options)
        finally:
            closed.append(True)

    def fail(*_: object) -> None:
        raise StorageError("the store is down", remedy="wait")

    table = DataTable(field("a", "long"))
    table.append(*(pa.table({"a": [number]}) for number in range(3)))
    monkeypatch.setattr(LocalEngine, "rewrite", rewrite)
    monkeypatch.setattr(RewriteRun, "_take", fail)
    snapshot, context = Table(table.store).snapshot(), RunContext.at(NOW)
    planned = optimize.plan(snapshot, OptimizeOptions(), context=context)
    with pytest.raises(StorageError) as raised:
        optimize.apply(Table(table.store), planned)
    # The error keeps the frames of the run, and with them the generator.
    assert raised.value and closed == [True]
