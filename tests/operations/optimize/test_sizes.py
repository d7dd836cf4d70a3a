"""New files have about the target size, whatever the sources compress like, and stay."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW
from tests.support.rewrites.table_rows import live_adds

SOURCES = 12
ROWS = 4000
KINDS: dict[str, dict[str, Any]] = {
    f"{codec}, {encoding}": {"compression": codec, **writing}
    for codec in ("none", "snappy", "gzip", "zstd")
    for encoding, writing in {
        "dictionary": {},
        "plain": {"use_dictionary": False},
        "delta": {"use_dictionary": False, "column_encoding": {"b": "DELTA_BYTE_ARRAY"}},
    }.items()
}


def table_of(writing: dict[str, Any]) -> DataTable:
    made = DataTable(field("a", "long"), field("b", "string"), store=MemoryStore())
    for n in range(SOURCES):
        made.append(rows(n * ROWS), writing=writing)
    return made


def rows(first: int) -> pa.Table:
    """Texts of which a quarter is noise."""
    numbers = range(first, first + ROWS)
    noise = [sha256(b"%d" % n).hexdigest()[:20] for n in numbers]
    texts = [
        f'{{"user": "{noise[n - first]}", "event": "click", "page": "/{n % 50}"}}' for n in numbers
    ]
    return pa.table({"a": pa.array(numbers, pa.int64()), "b": texts})


def optimized(table: Table, target: int) -> optimize.OptimizeResult:
    options = OptimizeOptions(target_bytes=target, workers=1)
    return optimize.apply(
        table,
        optimize.plan(table.snapshot(), options, context=RunContext.at(NOW)),
        context=RunContext.at(NOW),
    )


@pytest.mark.conformance("RW-04", "RW-06")
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_run_plans_nothing_and_new_files_are_not_half_empty(kind: str) -> None:
    made = table_of(KINDS[kind])
    source = sum(add["size"] for add in live_adds(made.store).values())
    target = source // 8
    table = Table(made.store)
    planned = optimize.plan(
        table.snapshot(),
        OptimizeOptions(target_bytes=target, workers=1),
        context=RunContext.at(NOW),
    )
    first = optimize.apply(table, planned, context=RunContext.at(NOW))
    assert (first.status, first.rows) == ("rewritten", SOURCES * ROWS)
    assert planned.files_after == first.files_after
    sizes = [add["size"] for add in live_adds(made.store).values()]
    assert len(sizes) == 1 or min(sizes) >= target / 2
    assert max(sizes) <= 2 * target
    for again in (target, target // 2, 2 * target):
        found = optimized(table, again)
        assert found.status == "nothing-to-do", (kind, again, sizes)


def test_a_sample_that_cannot_be_read_prevents_no_plan() -> None:
    made = table_of({})
    files = live_adds(made.store)
    for path in files:
        made.store.put(path, b"damaged")
    target = sum(add["size"] for add in files.values()) // 4
    options = OptimizeOptions(target_bytes=target, workers=1)
    assert (
        optimize.plan(Table(made.store).snapshot(), options, context=RunContext.at(NOW)).bins == 4
    )


def test_files_that_had_to_wait_are_merged_with_those_of_an_earlier_run() -> None:
    """Nothing was appended within a week of the second plan."""
    made = table_of({})
    table = Table(made.store)
    optimized(table, 64 << 20)
    made.builder.commits[table.latest_version()] = []
    for number in range(3):
        made.append(rows((SOURCES + number) * ROWS))
    context = RunContext.at(NOW + timedelta(days=40))
    plan = optimize.plan(table.snapshot(), OptimizeOptions(), context=context)
    assert (plan.files, plan.files_after) == (4, 1), plan.left_alone
