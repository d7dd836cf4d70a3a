"""What operations are expected to take, from the rows of a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.address import identity_of
from delta_maintenance.ledger import Delivery, LedgerTable
from delta_maintenance.ledger.costs import known_costs
from delta_maintenance.ledger.rows import PARTITION, SCHEMA, Origin, rows_of
from delta_maintenance.operations.core.assessment import AssessedOperation
from delta_maintenance.policies.budget.estimates import CostHistory
from delta_maintenance.policies.definition.budget import Unit
from delta_maintenance.policies.definition.ledger import Prices
from delta_maintenance.policies.measuring import Cost
from delta_maintenance.policies.models import OperationOutcome, RunResult
from delta_maintenance.storage import MemoryStore
from tests.support.tables.vacuum_tables import Folder

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ORDERS, EVENTS = "s3://lake/orders", "s3://lake/events"
PRICES = Prices.model_validate({"cpu_hour": 3.6, "requests": {"read": 1}})


def due(operation: str = "optimize", *, size: int = 300_000_000) -> AssessedOperation:
    return AssessedOperation(
        operation=operation, status="due", reason="", bytes_to_read=size, requests=100
    )


def record(
    ledger: LedgerTable,
    uri: str,
    seconds: list[float],
    *,
    engine: Literal["local", "spark"] = "local",
    **cost: Any,
) -> None:
    """Records runs of `optimize` that took so many seconds of processor time, the last one last."""
    for number, taken in enumerate(seconds):
        at = NOW - timedelta(days=len(seconds) - number)
        values = {"cpu_seconds": taken, "requests_read": 200, "bytes_written": 100, **cost}
        outcome = OperationOutcome(
            operation="optimize",
            status="done",
            reason="",
            started_at=at,
            seconds=taken * 2,
            engine=engine,
            cost=Cost(**values),
            expected=CostHistory().expected(identity_of(uri), due()),
        )
        result = RunResult(
            name=uri, uri=uri, status="done", started_at=at, ended_at=at, outcomes=(outcome,)
        )
        run_id = f"{uri}-{number}"
        rows = rows_of(result, Origin(done_by="python", run_id=run_id))
        ledger.append(Delivery(run_id=run_id, rows=rows))


def history(ledger: LedgerTable, prices: Prices | None = None) -> CostHistory:
    known, problem = known_costs(lambda: ledger, now=NOW, prices=prices)
    assert problem is None
    return known


def costs(of: CostHistory, uri: str, **work: Any) -> Mapping[Unit, float]:
    return of.expected(identity_of(uri), due(**work)).costs


def test_the_last_five_runs_of_a_table_count_and_other_tables_learn_from_them() -> None:
    ledger = LedgerTable(MemoryStore())
    record(ledger, ORDERS, [500, 500, 20, 21, 22, 23, 24])
    known = history(ledger)
    expected = known.expected(identity_of(ORDERS), due())
    assert expected.costs["cpu_seconds"] == pytest.approx(22)
    assert expected.costs["seconds"] == pytest.approx(44)
    assert expected.costs["requests"] == 200 and expected.costs["bytes_rewritten"] == 100
    assert (expected.least, expected.most) == pytest.approx((20 / 22, 24 / 22))
    assert expected.runs == 5
    # A table of the same size, and one of another size, of which nothing is known.
    assert costs(known, EVENTS)["cpu_seconds"] == pytest.approx(22)
    first = costs(CostHistory(), EVENTS, size=3_000_000_000)
    assert costs(known, EVENTS, size=3_000_000_000) == first
    assert costs(known, ORDERS, operation="purge") == costs(CostHistory(), ORDERS)


def test_the_highest_cost_of_a_run_is_known_for_each_unit() -> None:
    """The store was slow once, and nothing else changed."""
    ledger = LedgerTable(MemoryStore())
    record(ledger, ORDERS, [20, 20, 20])
    record(ledger, f"{ORDERS}/", [20], requests_read=900)
    expected = history(ledger).expected(identity_of(ORDERS), due())
    assert expected.most == 1 and expected.costs["requests"] == 200
    assert expected.highest["requests"] == 900 and expected.highest["cpu_seconds"] == 20
    single = LedgerTable(MemoryStore())
    record(single, ORDERS, [20])
    assert history(single).expected(identity_of(ORDERS), due()).highest == {}


def test_bytes_that_are_copied_cost_a_fifth_and_are_written_all_the_same() -> None:
    decoded = CostHistory().expected("t", due()).costs
    copied = CostHistory().expected("t", replace(due(), bytes_to_copy=due().bytes_to_read)).costs
    alone = CostHistory().expected("t", due(size=0)).costs["cpu_seconds"]
    share = (copied["cpu_seconds"] - alone) / (decoded["cpu_seconds"] - alone)
    assert share == pytest.approx(0.2)
    assert copied["bytes_rewritten"] == decoded["bytes_rewritten"] == due().bytes_to_read


def test_more_work_costs_more() -> None:
    ledger = LedgerTable(MemoryStore())
    record(ledger, ORDERS, [22, 22])
    known = history(ledger)
    double = costs(known, ORDERS, size=600_000_000)["cpu_seconds"]
    assert 1.8 * 22 < double < 2.2 * 22


def test_what_a_store_does_not_count_is_not_learned() -> None:
    ledger = LedgerTable(MemoryStore())
    record(ledger, ORDERS, [22], requests_read=None)
    assert costs(history(ledger), ORDERS)["requests"] == 100


def test_what_tasks_of_spark_send_is_not_learned_nor_their_time_where_it_is_unknown() -> None:
    for seconds, expected in ((None, 1.0), (44.0, 45.0)):
        ledger = LedgerTable(MemoryStore())
        record(ledger, ORDERS, [1, 1], engine="spark", spark_task_seconds=seconds)
        known = costs(history(ledger, PRICES), ORDERS)
        first = costs(CostHistory(prices=PRICES), ORDERS)
        if seconds is None:
            expected = first["cpu_seconds"]
            assert known["money"] == first["money"]
        assert known["cpu_seconds"] == pytest.approx(expected)
        assert known["seconds"] == pytest.approx(2)
        assert [known["requests"], known["bytes_rewritten"]] == [100, 300_000_000]


def test_rows_that_no_operation_has_written_cost_no_estimate() -> None:
    columns = {
        "operation": pa.array(["optimize", None]),
        "expected_bytes": pa.array([10, 10]),
        "expected_copied": pa.array([1 << 59, 0]),
        "cpu_seconds": pa.array([1.0, 1.0]),
        "started_at": pa.array([NOW, NOW], SCHEMA.field("started_at").type),
        "table_uri": pa.array([ORDERS, ORDERS]),
        "outcome": pa.array(["done", "done"]),
        PARTITION: pa.array(["2026-11", "2026-11"]),
    }
    ledger = LedgerTable(MemoryStore())
    ledger.append(Delivery(run_id="another", rows=pa.table(columns)))
    assert costs(history(ledger), ORDERS)["cpu_seconds"] > 0
    copied = replace(due(size=10), bytes_to_copy=1 << 59)
    assert CostHistory().expected("t", copied).costs["cpu_seconds"] > 0


def test_money_follows_the_prices() -> None:
    ledger = LedgerTable(MemoryStore())
    record(ledger, ORDERS, [1000])
    money = costs(history(ledger, PRICES), ORDERS)["money"]
    assert money == pytest.approx(1000 * 3.6 / 3600 + 200 / 1000)


def test_without_a_ledger_estimates_are_those_of_the_constants() -> None:
    for open_ledger in (None, lambda: LedgerTable(MemoryStore())):
        known, problem = known_costs(open_ledger, now=NOW, prices=None)
        assert problem is None and known == CostHistory()


def test_a_ledger_that_cannot_be_read_is_said() -> None:
    damaged = Folder()
    damaged.write("_delta_log/00000000000000000001.json", b"{}")
    known, problem = known_costs(lambda: LedgerTable(damaged.store), now=NOW, prices=PRICES)
    assert known == CostHistory(prices=PRICES)
    assert problem is not None
    assert problem.startswith("the usual order is used until the budget is spent: ")


@given(
    seconds=st.lists(st.floats(0.001, 1e5), min_size=1, max_size=8), size=st.integers(0, 1 << 50)
)
def test_estimates_are_positive_and_within_their_runs(seconds: list[float], size: int) -> None:
    ledger = LedgerTable(MemoryStore())
    record(ledger, ORDERS, seconds)
    expected = history(ledger).expected(identity_of(ORDERS), due())
    assert min(seconds) * 0.999 <= expected.costs["cpu_seconds"] <= max(seconds) * 1.001
    assert costs(history(ledger), ORDERS, size=size)["cpu_seconds"] > 0
