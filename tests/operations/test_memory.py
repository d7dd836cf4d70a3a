"""The memory that each operation states holds for every file, in this process and in a task."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.clock import new_id
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import backfill_row_ids, drop_feature, fsck, optimize, purge
from delta_maintenance.operations.backfill_row_ids import BackfillRowIdsOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.operations.fsck.checks.row_ids import (
    PARTS,
    RANGES_PER_PART,
    RANGES_PER_ROUND,
    PartReading,
)
from delta_maintenance.operations.fsck.examination import OPENING_MEMORY
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.operations.rewriting import engine
from delta_maintenance.operations.rewriting.engine import BinOutcome
from delta_maintenance.protocol.data_files import DataFileLayout
from delta_maintenance.spark.fsck import FileReading, RowIdReading
from delta_maintenance.spark.log_shares import TableAddress
from delta_maintenance.spark.rewriting import BinTask
from delta_maintenance.spark.statistics import FooterReading
from delta_maintenance.storage import open_store
from delta_maintenance.table.data import Bin, RewriteSpec, footers
from delta_maintenance.table.data.footers import RowCounts
from delta_maintenance.table.read import Table
from tests.support.hostile.large_contents import INPUTS, NUMBERS, TEXTS, content, written
from tests.support.rewrites.data_files import ROW_TRACKING, field
from tests.support.rewrites.mapped_tables import HIGHEST, ID, MODE, NAME
from tests.support.rewrites.rewritten_tables import NOW, VECTORS
from tests.support.suite.play import some
from tests.support.suite.usage import measured

pytestmark = pytest.mark.process

PROCESS = 200 << 20
"""The part of a plan for Python and Arrow, which a measurement does not include."""
TRACKED = {
    "features": ("deletionVectors", "rowTracking", "domainMetadata"),
    "configuration": ROW_TRACKING | VECTORS,
}
SECONDS = 60
"""Of processor time."""
UNTRACKED = {"features": ("deletionVectors",), "configuration": VECTORS}
MANY = 16
"""As many files as are opened at a time."""


@dataclass(frozen=True)
class Done:
    """What a child process tells: the memory that it stated and took, and the outcome."""

    stated: int
    taken: int
    seconds: float
    outcome: str
    refused: tuple[tuple[str, bool], ...]
    """Files that a rewrite left out, each with whether it is taken for damaged."""


class Tasks:
    """Engines that run the tasks of Spark in this process."""

    def __init__(self, root: str) -> None:
        self.root = root

    def rewrite(
        self, bins: Iterable[Bin], spec: RewriteSpec, *, workers: int | None = None
    ) -> Iterator[BinOutcome]:
        """See `BinEngine`."""
        address = TableAddress(uri=self.root, storage_options={})
        for work in bins:
            task = BinTask(address=address, spec=spec, bins=(work,), new_id=new_id)
            for batch in task.run([]):
                yield pickle.loads(batch.column(1)[0].as_py())


class Contents(Tasks):
    """A `ContentsCheck`."""

    def __call__(
        self, present: pa.Table, adds: pa.Table, findings: Findings, *, version: int, **_: Any
    ) -> None:
        """See `ContentsCheck`."""
        reading = FileReading(
            address=TableAddress(uri=self.root, storage_options={}), version=version
        )
        footers = present.select(["path", "location", "num_records"])
        vectors = adds.select(["path", "deletionVector", "num_records"])
        for read, rows in ((reading.footers, footers), (reading.vectors, vectors)):
            for batch in read(rows.combine_chunks().to_batches()):
                findings.extend(pa.Table.from_batches([batch]))

    def row_ids(self, layout: DataFileLayout) -> RowIds:
        """See `ReadsRowIds`."""
        return RowIds(self.root, layout)


@dataclass
class RowIds:
    """A `RowIdReader`."""

    root: str
    layout: DataFileLayout
    files_per_round = 500

    def __call__(self, files: pa.Table, *, passed: int) -> pa.Table:
        """See `RowIdReader`."""
        reading = PartReading(
            layout=self.layout,
            passed=passed,
            most_ranges=RANGES_PER_ROUND,
            per_part=RANGES_PER_PART,
        )
        task = RowIdReading(
            address=TableAddress(uri=self.root, storage_options={}), reading=reading
        )
        return pa.Table.from_batches(task.read(files.combine_chunks().to_batches()), PARTS)


def counting(root: str) -> Callable[[pa.StringArray], RowCounts]:
    """A `RowCounter`."""

    def count(paths: pa.StringArray) -> RowCounts:
        wanted = pa.record_batch({"path": paths})
        [found] = FooterReading(address=TableAddress(uri=root, storage_options={})).read([wanted])
        problems = tuple(found.column(1).drop_null().to_pylist())
        return RowCounts(counts=found.column(0), problems=problems)

    return count


def context(tasks: Any = None) -> RunContext:
    return RunContext.at(NOW, sleep=lambda _: None, engine=tasks)


def rewritten(operation: Any, options: Any, root: str) -> Callable[[], tuple[int, Any]]:
    table = Table(open_store(root, {}))

    def run() -> tuple[int, Any]:
        planned = operation.plan(table.snapshot(), options, context())
        tasks = Tasks(root) if options.engine == "spark" else None
        result = operation.apply(table, planned, context(tasks))
        return planned.memory_bytes - PROCESS, result

    return run


def examined(root: str, tasks: Any = None) -> Callable[[], tuple[int, Any]]:
    table = Table(open_store(root, {}))

    def run() -> tuple[int, Any]:
        found = fsck.survey(table, FsckOptions(deep=True), now=NOW, engine=tasks)
        return OPENING_MEMORY, found.plan

    return run


def backfilled(root: str, tasks: Any = None) -> Callable[[], tuple[int, Any]]:
    table = Table(open_store(root, {}))
    options = BackfillRowIdsOptions(engine="local" if tasks is None else "spark")

    def run() -> tuple[int, Any]:
        planned = backfill_row_ids.plan(table.snapshot(), options, context())
        assert planned.files_to_count
        try:
            result: Any = backfill_row_ids.apply(table, planned, context(tasks))
        except DeltaMaintenanceError as error:
            result = error
        return footers.MEMORY, result

    return run


def dropped(feature: str, root: str) -> Callable[[], tuple[int, Any]]:
    table = Table(open_store(root, {}))

    def run() -> tuple[int, Any]:
        options = DropFeatureOptions(feature=feature)
        try:
            planned = drop_feature.plan(table.snapshot(), options, context())
            stated = max(step.memory_bytes for step in planned.steps) - PROCESS
        except DeltaMaintenanceError as error:
            # A footer that cannot be read prevents the plan.
            return footers.MEMORY, error
        try:
            return stated, drop_feature.apply(table, planned, context())
        except DeltaMaintenanceError as error:
            return stated, error

    return run


def mapped(kind: Any) -> list[dict[str, object]]:
    if kind not in ("string", TEXTS, NUMBERS):
        [inner] = kind["fields"]
        kind = kind | {"fields": [inner | {"metadata": {ID: 3, NAME: "s"}}]}
    return [
        field("logical", kind, **{ID: 1, NAME: "c"}),
        field("n", "integer", **{ID: 2, NAME: "n"}),
    ]


def widened(kind: object) -> list[dict[str, object]]:
    changes = [{"fromType": "integer", "toType": "long"}]
    return [field("c", kind), field("n", "long", **{"delta.typeChanges": changes})]


@dataclass(frozen=True)
class Operation:
    """An operation, and the tables that it has work with."""

    run: Callable[[str], Callable[[], tuple[int, Any]]]
    table: dict[str, Any]


OPERATIONS = {
    "optimize": Operation(
        lambda root: rewritten(optimize, OptimizeOptions(engine="local", workers=1), root),
        UNTRACKED,
    ),
    "purge": Operation(
        lambda root: rewritten(purge, PurgeOptions(engine="local", workers=1), root), UNTRACKED
    ),
    "fsck --deep": Operation(examined, TRACKED | {"many": MANY}),
    "backfill-row-ids": Operation(backfilled, {"many": MANY, "counted": False}),
    "drop deletionVectors": Operation(
        lambda root: dropped("deletionVectors", root),
        {"features": ("deletionVectors",), "configuration": VECTORS, "many": MANY},
    ),
    "drop columnMapping": Operation(
        lambda root: dropped("columnMapping", root),
        {
            "features": ("columnMapping",),
            "configuration": {MODE: "name", HIGHEST: "3"},
            "fields": mapped,
            "many": MANY,
        },
    ),
    "drop typeWidening": Operation(
        lambda root: dropped("typeWidening", root),
        {"features": ("typeWidening",), "fields": widened, "many": MANY},
    ),
    "task of optimize": Operation(
        lambda root: rewritten(optimize, OptimizeOptions(engine="spark"), root), UNTRACKED
    ),
    "task of purge": Operation(
        lambda root: rewritten(purge, PurgeOptions(engine="spark"), root), UNTRACKED
    ),
    "tasks of fsck --deep": Operation(
        lambda root: examined(root, Contents(root)), TRACKED | {"many": MANY}
    ),
    "task of backfill-row-ids": Operation(
        lambda root: backfilled(root, counting(root)), {"many": MANY, "counted": False}
    ),
}


def child(told: Connection, operation: str, root: str) -> None:
    """Runs an operation in a process of its own."""
    # With more workers, the inputs would have to be larger.
    engine._MOST_WORKERS = 1
    work = OPERATIONS[operation].run(root)
    with measured() as taken:
        stated, outcome = work()
    refused = tuple((each.path, each.damaged) for each in getattr(outcome, "refused", ()))
    told.send(Done(stated, taken.memory, taken.seconds, str(outcome), refused))


PAIRS = list(product(OPERATIONS, INPUTS))
"""`make nightly` plays all pairs, `make test` two or three of each operation and each input."""


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    return processes


@pytest.mark.conformance("RW-15", "RW-43")
@pytest.mark.parametrize(("operation", "name"), some(PAIRS, 31))
def test_the_stated_memory_holds_for_every_file(
    operation: str,
    name: str,
    tmp_path: Path,
    processes: ForkServerContext,
    record_property: Callable[[str, object], None],
) -> None:
    written(tmp_path, name, **OPERATIONS[operation].table)
    here, there = processes.Pipe(duplex=False)
    process = processes.Process(target=child, args=(there, operation, str(tmp_path)))
    process.start()
    there.close()
    try:
        done: Done = here.recv()
    finally:
        process.kill()
        process.join()
    record_property("memory", f"{operation} | {name} | {done.stated} | {done.taken}")
    assert done.taken < done.stated, done.outcome
    assert done.seconds < SECONDS
    if "optimize" in operation or "purge" in operation:
        refused = content(name).refused
        assert done.refused == ((("f0.parquet", refused == "damaged"),) if refused else ())
