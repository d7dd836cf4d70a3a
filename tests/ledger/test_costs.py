"""Money beside units: exact for each class of requests, and savings for freed bytes only."""

from __future__ import annotations

import io
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from delta_maintenance.cli.main import main
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.ledger import Delivery, LedgerTable
from delta_maintenance.ledger.rows import COLUMNS, SCHEMA
from delta_maintenance.ledger.summary import PRICED, costs_of, sums
from delta_maintenance.policies.definition import load_policy
from delta_maintenance.policies.definition.ledger import Prices
from delta_maintenance.storage import open_store

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
PRICES = Prices.model_validate(
    {
        "currency": "EUR",
        "requests": {"write": 5, "list": 7, "read": 0.4, "other": 3, "delete": 11},
        "gb_month": {"STANDARD": 0.02, "GLACIER": 0.01},
        "gb_out": 0.09,
        "cpu_hour": 0.04,
        "spark_core_hour": 0.05,
    }
)


def priced(name: str, value: float) -> float:
    row = {each: None for each in PRICED} | {name: value}
    columns = {each: pa.array([row[each]], SCHEMA.field(each).type) for each in PRICED}
    (found,) = costs_of(pa.table(columns), PRICES).to_pylist()
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize(
    ("name", "value", "cost"),
    [
        ("requests_write", 2000, 10.0),
        ("requests_list", 1000, 7.0),
        ("requests_read", 5000, 2.0),
        ("requests_other", 1000, 3.0),
        ("requests_delete", 1000, 11.0),
        ("bytes_read", 10 << 30, 0.9),
        ("cpu_seconds", 7200.0, 0.08),
        ("spark_task_seconds", 3600.0, 0.05),
    ],
)
def test_each_class_has_its_own_price(name: str, value: float, cost: float) -> None:
    assert priced(name, value) == pytest.approx(cost)
    assert {each.name for each in COLUMNS} >= {*PRICED}


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerTable:
    """Two deletions of 4 GiB: one freed nothing, and one frees its bytes in a week."""
    ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
    common: dict[str, Any] = {
        "month": "2026-11",
        "run_id": "r",
        "started_at": NOW,
        "table_name": "orders",
        "operation": "vacuum",
        "outcome": "done",
        "bytes_deleted": 4 << 30,
        "bytes_freed": 0,
        "requests_list": 1000,
    }
    rows = [
        {**common, "row_id": "r-0", "freed": "never"},
        {**common, "row_id": "r-1", "freed": "later", "freed_at": NOW + timedelta(days=7)},
    ]
    delivery = Delivery(
        run_id="r", rows=pa.Table.from_pylist(rows, schema=SCHEMA), since_version=-1
    )
    assert ledger.append(delivery)
    return ledger


def test_savings_begin_when_the_bytes_are_freed(ledger: LedgerTable) -> None:
    (early,) = sums(ledger, since=None, by="table", now=NOW, prices=PRICES)
    assert (early.bytes_deleted, early.bytes_freed) == (8 << 30, 0)
    assert early.saves_a_month == 0 and early.cost == pytest.approx(14)
    week = NOW + timedelta(days=7)
    (late,) = sums(ledger, since=None, by="table", now=week, prices=PRICES)
    # At the lowest price, because the classes of deleted files are not known.
    assert late.bytes_freed == 4 << 30 and late.saves_a_month == pytest.approx(0.04)
    assert late.currency == "EUR"
    (units,) = sums(ledger, since=None, by="table", now=week)
    assert (units.bytes_freed, units.currency, units.cost) == (4 << 30, None, None)


def test_the_verb_shows_money_only_with_a_price_list(
    capsys: pytest.CaptureFixture[str], ledger: LedgerTable, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"

    def shown(*words: str) -> str:
        assert main(["ledger", str(policy), "--since", "36500 days", *words]) == 0
        return capsys.readouterr().out

    document = {"version": 1, "ledger": str(tmp_path / "ledger")}
    policy.write_text(yaml.safe_dump(document))
    assert "cost" not in shown("--by", "table")
    policy.write_text(yaml.safe_dump(document | {"prices": PRICES.to_json()}))
    out = shown("--by", "table")
    assert "cost" in out and "14 EUR" in out
    (found,) = json.loads(shown("--by", "table", "--json"))
    assert found["cost"] == pytest.approx(14)
    newest = shown()
    assert "4 GiB deleted, which frees nothing" in newest
    assert "4 GiB deleted and freed by 2026-12-04 12:00" in newest


def test_sums_and_money_are_whole_on_a_narrow_terminal(
    ledger: LedgerTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    policy = tmp_path / "policy.yaml"
    document = {"version": 1, "ledger": str(tmp_path / "ledger"), "prices": PRICES.to_json()}
    policy.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("COLUMNS", "56")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert main(["ledger", str(policy), "--since", "36500 days", "--by", "table"]) == 0
    text = re.sub(r"\x1b\[\d*m", "", terminal.getvalue())
    assert "cost" in text and "14 EUR" in text and "merged" not in text
    assert all(len(line.rstrip()) <= 56 for line in text.splitlines())


@pytest.mark.parametrize(
    ("prices", "problem"),
    [
        ("requests: {wirte: 1}", "prices.requests.wirte: unknown key; did you mean write?"),
        ("gb_mont: {}", "prices.gb_mont: unknown key; did you mean gb_month?"),
        ("gb_month: {STANDRD: 1}", "STANDRD is no storage class; did you mean STANDARD?"),
        ("gb_month: {x: 1}", "x is no storage class; use the name of the store"),
        ("cpu_hour: -1", "prices.cpu_hour: input should be greater than or equal to 0"),
        ("cpu_hour: .nan", "prices.cpu_hour: input should be a finite number"),
        ("currency: $", "prices.currency: string should match pattern"),
    ],
)
def test_a_wrong_price_list_is_one_clear_line(tmp_path: Path, prices: str, problem: str) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"version: 1\nprices:\n  {prices}\n")
    with pytest.raises(InvalidRequestError) as caught:
        load_policy(policy)
    text = str(caught.value)
    assert problem in text and "policy.yaml: line 3: " in text and "\n" not in text
