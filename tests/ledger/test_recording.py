"""Rows reach the ledger exactly once, whatever fails in between, and no run fails for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from delta_maintenance import clock
from delta_maintenance.errors import StorageError
from delta_maintenance.ledger import Delivery, LedgerTable, recording
from delta_maintenance.ledger.recording import Recorder
from delta_maintenance.ledger.rows import Origin, rows_of
from delta_maintenance.policies import OperationOutcome, RunResult
from delta_maintenance.storage import Store, open_store
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash, faults
from tests.support.tables.assessed_tables import assessment

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def result(*outcomes: OperationOutcome, problem: str | None = None) -> RunResult:
    return RunResult(
        name="sales/orders",
        uri="s3://lake/sales/orders",
        status="failed" if problem else "done",
        started_at=NOW,
        ended_at=NOW + timedelta(seconds=3),
        outcomes=outcomes,
        before=assessment("sales/orders"),
        problem=problem,
    )


def outcome(operation: str = "checkpoint", **fields: object) -> OperationOutcome:
    blank = OperationOutcome(
        operation=operation, status="done", reason="20 commits", started_at=NOW, seconds=1.5
    )
    return replace(blank, **fields)  # type: ignore[arg-type]  # fields of an outcome


def origin(run: str) -> Origin:
    return Origin(done_by="cli", run_id=run)


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerTable:
    return LedgerTable(open_store(str(tmp_path / "ledger")))


def state_in(tmp_path: Path) -> Store:
    (tmp_path / "state").mkdir(exist_ok=True)
    return open_store(str(tmp_path / "state"))


def recorded(ledger: LedgerTable) -> list[str]:
    return sorted(ledger.read(["row_id"])["row_id"].to_pylist())


def test_a_run_has_a_row_for_each_operation_and_none_if_nothing_ran(
    ledger: LedgerTable, tmp_path: Path
) -> None:
    recorder = Recorder(open_ledger=lambda: ledger, state=state_in(tmp_path))
    ran = result(outcome(), outcome("vacuum", status="failed", reason="it\nfailed"))
    assert recorder.record(ran, origin("a")) == []
    assert recorder.record(result(), origin("b")) == []
    assert recorder.record(result(problem="gone"), origin("c")) == []
    rows = ledger.read(["row_id", "operation", "outcome", "error", "seconds", "month"]).to_pylist()
    assert sorted(rows, key=lambda row: row["row_id"]) == [
        {
            "month": "2026-11",
            "row_id": "a-0",
            "operation": "checkpoint",
            "outcome": "done",
            "error": None,
            "seconds": 1.5,
        },
        {
            "month": "2026-11",
            "row_id": "a-1",
            "operation": "vacuum",
            "outcome": "failed",
            "error": "it failed",
            "seconds": 1.5,
        },
        {
            "month": "2026-11",
            "row_id": "c-0",
            "operation": None,
            "outcome": "failed",
            "error": "gone",
            "seconds": 3.0,
        },
    ]
    assert not [*(tmp_path / "state/ledger").iterdir()]


def test_no_secret_and_no_long_text_gets_into_a_row() -> None:
    secret = "https://user:hunter2@host/t?sig=hunter2"
    ran = replace(result(outcome(reason=f"{secret} {'x' * 9_999}")), uri=secret, name=secret)
    (row,) = rows_of(ran, replace(origin("a"), link=secret)).to_pylist()
    assert "hunter2" not in str(row)
    assert len(row["reason"]) == 500


def test_no_value_of_a_partition_gets_into_a_row() -> None:
    file = "day=2026-11-01/email=ann smith%40example.org/part-00000-1.c000.snappy.parquet"
    failed = outcome("optimize", status="failed", reason=f"table /t, file {file}: gone; restore it")
    (row,) = rows_of(result(failed), origin("a")).to_pylist()
    assert "smith" not in str(row)
    assert row["error"] == (
        "table /t, file day=…/email=…/part-00000-1.c000.snappy.parquet: gone; restore it"
    )


def test_a_ledger_that_is_down_costs_a_warning_and_is_caught_up(
    ledger: LedgerTable, tmp_path: Path
) -> None:
    def down() -> LedgerTable:
        raise StorageError("the store is down", remedy="wait")

    state = state_in(tmp_path)
    for run in ("a", "b"):
        (told,) = Recorder(open_ledger=down, state=state).record(result(outcome()), origin(run))
        assert "the next run delivers its rows" in told and "\n" not in told
    without_folder = Recorder(open_ledger=down, state=None)
    (told,) = without_folder.record(result(outcome()), origin("x"))
    assert "its rows are lost" in told
    assert without_folder.record(result(outcome()), origin("y")) == [], "once for all tables"
    recorder = Recorder(open_ledger=lambda: ledger, state=state)
    assert recorder.record(result(outcome()), origin("c")) == []
    assert recorded(ledger) == ["a-0", "b-0", "c-0"]
    assert not [*(tmp_path / "state/ledger").iterdir()]


@pytest.mark.parametrize("other_process", [False, True])
def test_a_ledger_whose_store_does_not_answer_is_waited_for_once(
    ledger: LedgerTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_process: bool
) -> None:
    state, asked, at = state_in(tmp_path), [], [datetime.now(UTC)]
    monkeypatch.setattr(recording, "_failed_at", {})
    monkeypatch.setattr(recording, "_LONG", -1.0)
    monkeypatch.setattr(clock, "now", lambda: at[0])

    def down() -> LedgerTable:
        asked.append(1)
        raise StorageError("no answer", remedy="wait")

    def record(run: str, opens: Callable[[], LedgerTable], into: Store | None = state) -> list[str]:
        if other_process:
            recording._failed_at.clear()
        recorder = Recorder(open_ledger=opens, state=into, address="memory://ledger")
        return recorder.record(result(outcome()), origin(run))

    warnings = [record(run, down) for run in "abc"]
    assert len(asked) == 1
    assert "is not tried again for 5 minutes" in warnings[0][0]
    assert all("the next run delivers" in told for some in warnings for told in some)
    assert [len(some) for some in warnings] == ([1, 1, 1] if other_process else [1, 0, 0])
    at[0] += timedelta(minutes=6)
    assert record("d", lambda: ledger) == []
    assert recorded(ledger) == ["a-0", "b-0", "c-0", "d-0"]
    recording._failed_at.clear()
    monkeypatch.setattr(state, "stat", lambda path: None)
    (told,) = record("x", down, None)
    assert "its rows are lost" in told


def test_two_processes_that_catch_up_at_once_deliver_a_row_once(
    ledger: LedgerTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_in(tmp_path)

    def record(run: str, into: Store = state) -> list[str]:
        return [
            *Recorder(open_ledger=lambda: ledger, state=into).record(result(outcome()), origin(run))
        ]

    record("first")
    with monkeypatch.context() as patch:
        patch.setattr(LedgerTable, "version", _fail)
        record("late")
    slow = state_in(tmp_path)
    read = slow.read_head
    met: list[str] = []

    def read_and_wait(path: str, size: int) -> bytes:
        """Another process delivers the rows between two steps of this one."""
        found = read(path, size)
        if not met:
            met.append(path)
            assert record("fast") == record("next") == []
        return found

    monkeypatch.setattr(slow, "read_head", read_and_wait)
    assert record("slow", slow) == []
    assert met == ["ledger/late.json"]
    assert recorded(ledger) == ["fast-0", "first-0", "late-0", "next-0", "slow-0"]


def test_rows_that_cannot_be_appended_hold_up_no_others(
    ledger: LedgerTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LedgerTable, "version", _fail)
        for run in ("a", "b", "c"):
            recorder = Recorder(open_ledger=lambda: ledger, state=state)
            assert len(recorder.record(result(outcome()), origin(run))) == 1
    append = LedgerTable.append

    def refuse_one(self: LedgerTable, delivery: Delivery) -> bool:
        if delivery.run_id == "b":
            raise RuntimeError("a defect")
        return append(self, delivery)

    monkeypatch.setattr(LedgerTable, "append", refuse_one)
    recorder = Recorder(open_ledger=lambda: ledger, state=state)
    (told,) = recorder.record(result(outcome()), origin("d"))
    assert "a defect" in told and "\n" not in told
    assert recorded(ledger) == ["a-0", "c-0", "d-0"]
    assert [path.name for path in (tmp_path / "state/ledger").iterdir()] == ["b.json"]


def test_a_state_that_cannot_be_listed_does_not_call_delivered_rows_lost(
    ledger: LedgerTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_in(tmp_path)
    monkeypatch.setattr(state, "list_from", _fail)
    recorder = Recorder(open_ledger=lambda: ledger, state=state)
    (told,) = recorder.record(result(outcome()), origin("a"))
    assert "lost" not in told and "\n" not in told
    assert recorded(ledger) == ["a-0"]


def test_damaged_rows_are_named_and_the_others_delivered(
    ledger: LedgerTable, tmp_path: Path
) -> None:
    folder = tmp_path / "state/ledger"
    folder.mkdir(parents=True)
    (folder / "bad.json").write_text('{"form": 1, "rows": "AAAA"')
    (folder / "worse.json").write_text(
        json.dumps({"form": 1, "run_id": "w", "since_version": 0, "rows": "AAAA"})
    )
    (folder / "notes.txt").write_text("not ours")
    recorder = Recorder(open_ledger=lambda: ledger, state=state_in(tmp_path))
    warnings = [*recorder.record(result(outcome()), origin("a"))]
    assert len(warnings) == 2
    assert all("damaged" in told and "delete the file" in told for told in warnings)
    assert recorded(ledger) == ["a-0"]
    assert len([*folder.iterdir()]) == 3


def _record(ledger: Store, state: Store, run: str) -> list[str]:
    recorder = Recorder(open_ledger=lambda: LedgerTable(ledger), state=state)
    return recorder.record(result(outcome()), origin(run))


@pytest.mark.parametrize("broken", ["ledger", "state"])
@pytest.mark.parametrize("left_behind", [False, True])
def test_no_fault_loses_or_doubles_a_row(tmp_path: Path, broken: str, left_behind: bool) -> None:
    """Every call to one store fails in every way; then another process runs without faults."""

    def stores(name: str) -> tuple[Store, Store]:
        ledger, state = (open_store(str(tmp_path / name / each)) for each in ("ledger", "state"))
        _record(ledger, state, "first")
        if left_behind:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LedgerTable, "version", _fail)
                _record(ledger, state, "late")
        return ledger, state

    def run(name: str, at: int | None = None, fault: Fault | None = None) -> FaultStore:
        ledger, state = stores(name)
        failing = FaultStore(ledger if broken == "ledger" else state, at=at, fault=fault)
        pair = (failing, state) if broken == "ledger" else (ledger, failing)
        with suppress(SimulatedCrash):
            _record(*pair, "run")
        kept = {path.stem for path in (tmp_path / name / "state/ledger").glob("*.json")}
        before = set(recorded(LedgerTable(ledger)))
        assert _record(ledger, state, "last") == []
        found = recorded(LedgerTable(ledger))
        assert len(found) == len(set(found)), (at, fault)
        expected = {"first-0", "last-0", *before, *(f"{each}-0" for each in kept)}
        assert set(found) == expected | ({"late-0"} if left_behind else set()), (at, fault)
        assert not [*(tmp_path / name / "state/ledger").glob("*.json")]
        return failing

    trace = run("whole").trace
    played = 0
    for at, fault in faults(trace):
        run(f"{at}-{fault.name}", at, fault)
        played += 1
    print(f"ledger: faults at calls of the {broken}: {played}")
    assert played > 6


def _fail(*_: object) -> None:
    raise StorageError("down", remedy="wait")
