"""Ninety days of a ledger: sums and states against rows that are looked at one by one."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from delta_maintenance.address import identity_of
from delta_maintenance.ledger import LedgerTable
from delta_maintenance.ledger import trends as module
from delta_maintenance.ledger.rows import SCHEMA
from delta_maintenance.ledger.trends import DAYS, first_day, read_history, trends
from delta_maintenance.policies.definition.ledger import Prices
from delta_maintenance.storage import open_store
from tests.support.tables.ledger_rows import append, some_rows

NOW = datetime(2026, 11, 27, 12, 30, tzinfo=UTC)
TABLES = [(f"t{number}", f"s3://lake/t{number}") for number in range(7)]
PRICES = Prices.model_validate({"requests": {"write": 5}, "cpu_hour": 36})


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerTable:
    return LedgerTable(open_store(str(tmp_path / "ledger")))


def expected(rows: list[dict[str, Any]], now: datetime) -> dict[str, list[float]]:
    """The same numbers, one row after the other."""
    first = first_day(now)
    found: dict[str, list[float]] = {
        name: [0.0] * DAYS
        for name in ("files", "small", "replay_bytes", "operations", "failed")
        + ("bytes_freed", "bytes_kept", "cost")
    }
    rows = sorted((row for row in rows if row["started_at"] >= first), key=lambda r: r["ended_at"])
    for row in rows:
        day = (row["started_at"] - first).days
        freed = row["bytes_freed"] or 0
        found["operations"][day] += 1
        found["failed"][day] += row["outcome"] == "failed"
        found["bytes_freed"][day] += freed
        found["bytes_kept"][day] += (row["bytes_deleted"] or 0) - freed
        found["cost"][day] += row["requests_write"] * 0.005 + row["cpu_seconds"] * 0.01
    for name in {row["table_name"] for row in rows}:
        own = [row for row in rows if row["table_name"] == name]
        for day in range(DAYS):
            until = [row for row in own if (row["started_at"] - first).days <= day]
            if until:
                last = until[-1]
                when = "after" if last["files_after"] is not None else "before"
            else:
                last, when = own[0], "before"
            files = last[f"files_{when}"]
            found["files"][day] += files
            found["small"][day] += files * last[f"small_share_{when}"]
            found["replay_bytes"][day] += last[f"replay_bytes_{when}"]
    for name in ("files", "small", "replay_bytes"):
        unknown = min((row["started_at"] - first).days for row in rows)
        found[name][:unknown] = [math.nan] * unknown
    small = found.pop("small")
    found["small_share"] = [part / all_ for part, all_ in zip(small, found["files"], strict=True)]
    return found


@pytest.mark.parametrize("part", [7, 100_000], ids=["many parts", "one part"])
def test_sums_and_states_are_those_of_the_rows(
    ledger: LedgerTable, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART", part)
    rows = some_rows(TABLES, 300, now=NOW, days=100)
    # The rows of a day are in several files, and not in order.
    shuffled = rows.take(pa.array(np.random.default_rng(3).permutation(300)))
    append(ledger, shuffled, deliveries=5)
    history = read_history(ledger, now=NOW, prices=PRICES)
    wanted = expected(rows.to_pylist(), NOW)
    assert history.rows == sum(wanted["operations"]) < 300
    found = trends(history)
    assert found.tables == 7
    for name, values in wanted.items():
        assert getattr(found, name) == pytest.approx(np.array(values), nan_ok=True), name
    one = history.of({identity_of("s3a://lake/t3/")})
    own = [row for row in rows.to_pylist() if row["table_name"] == "t3"]
    for name, values in expected(own, NOW).items():
        assert getattr(trends(one), name) == pytest.approx(np.array(values), nan_ok=True), name


def test_only_the_newest_rows_are_kept_with_their_texts(
    ledger: LedgerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 20)
    monkeypatch.setattr(module, "_PART", 9)
    rows = some_rows(TABLES, 200, now=NOW, days=30)
    append(ledger, rows, deliveries=4)
    history = read_history(ledger, now=NOW, prices=None)
    times = history.newest["started_at"].to_pylist()
    newest = sorted(rows["started_at"].to_pylist(), reverse=True)[:20]
    assert times == newest and history.rows == 200
    assert history.newest["cost"].null_count == 20, "there is no price list"


def test_earlier_months_are_not_read(ledger: LedgerTable, tmp_path: Path) -> None:
    append(ledger, some_rows(TABLES, 50, now=NOW - timedelta(days=200), days=40))
    append(ledger, some_rows(TABLES, 30, now=NOW, days=20, seed=1))
    for file in (tmp_path / "ledger").glob("month=2026-0[1-7]/*.parquet"):
        file.unlink()
    assert read_history(ledger, now=NOW, prices=None).rows == 30


def test_a_ledger_without_rows_of_these_days_has_no_states(ledger: LedgerTable) -> None:
    append(ledger, some_rows(TABLES, 5, now=NOW - timedelta(days=200), days=1))
    history = read_history(ledger, now=NOW, prices=PRICES)
    found = trends(history)
    assert history.rows == found.tables == 0
    assert np.isnan(found.files).all() and np.isnan(found.small_share).all()


def test_days_before_the_first_row_were_not_measured(ledger: LedgerTable) -> None:
    append(ledger, some_rows(TABLES, 40, now=NOW, days=2))
    found = trends(read_history(ledger, now=NOW, prices=None))
    for values in (found.files, found.small_share, found.replay_bytes):
        assert np.isnan(values[: DAYS - 3]).all() and not np.isnan(values[-2:]).any()


def test_rows_of_other_engines_and_of_clocks_ahead_count(ledger: LedgerTable) -> None:
    known: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    ahead = NOW + timedelta(days=3)
    known |= {"month": f"{ahead:%Y-%m}", "row_id": "a-0", "run_id": "a", "started_at": ahead}
    known |= {"done_by": "other", "table_uri": "s3://lake/t0", "operation": "optimize"}
    append(ledger, pa.Table.from_pylist([known], schema=SCHEMA))
    found = trends(read_history(ledger, now=NOW, prices=None))
    assert found.operations[-1] == 1 and found.tables == 0


def test_rows_of_another_century_do_not_stay_the_newest(ledger: LedgerTable) -> None:
    rows = some_rows(TABLES, 5, now=NOW, days=3)
    far = pa.array([1 << 61] * 5, pa.int64()).cast(SCHEMA.field("started_at").type)
    append(ledger, rows)
    rows = some_rows(TABLES, 5, now=NOW, days=3, seed=1)
    append(ledger, rows.set_column(rows.column_names.index("started_at"), "started_at", far))
    assert len(ledger.read(["row_id"])) == 10
    assert read_history(ledger, now=NOW, prices=None).rows == 5
