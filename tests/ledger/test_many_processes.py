"""Eight processes record runs in one ledger, and are killed at random moments.

`DELTA_MAINTENANCE_LEDGER_RUNS=125` makes 1,000 runs of it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from delta_maintenance.ledger import LedgerTable
from delta_maintenance.ledger.recording import Recorder
from delta_maintenance.ledger.rows import Origin
from delta_maintenance.policies import OperationOutcome, RunResult
from delta_maintenance.storage import open_store

PROCESSES = 8
RUNS = int(os.environ.get("DELTA_MAINTENANCE_LEDGER_RUNS", "6"))
KILLS = 2
NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def record_some(folder: Path, process: int) -> None:
    """Records the runs of a process that its journal does not have; each start makes new IDs."""
    journal = folder / f"journal-{process}"
    done = len(journal.read_text().splitlines()) if journal.exists() else 0
    ledger = LedgerTable(open_store(str(folder / "ledger")))
    state = open_store(str(folder / "state"))
    recorder = Recorder(open_ledger=lambda: ledger, state=state)
    for number in range(done, RUNS):
        run = f"{process}-{number}-{os.getpid()}"
        outcome = OperationOutcome(
            operation="checkpoint", status="done", reason="due", started_at=NOW
        )
        result = RunResult(
            name="t",
            uri="/t",
            status="done",
            started_at=NOW,
            ended_at=NOW,
            outcomes=(outcome, outcome),
        )
        problems = recorder.record(result, Origin(done_by="cli", run_id=run))
        with journal.open("a") as file:
            file.write(f"{run} {'kept' if problems else 'told'}\n")


@pytest.mark.process
@pytest.mark.slow
def test_every_run_is_in_the_ledger_exactly_once(tmp_path: Path) -> None:
    chance = random.Random(20261127)
    (tmp_path / "state").mkdir()

    def start(process: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.ledger.test_many_processes"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen([*command, str(tmp_path), str(process)], env=environment)

    running = {process: start(process) for process in range(PROCESSES)}
    kills = [chance.randrange(PROCESSES) for _ in range(KILLS * PROCESSES)]
    for process in kills:
        # Kills come at any moment of the work, which no event marks.
        time.sleep(chance.random())
        if running[process].poll() is None:
            running[process].kill()
            running[process].wait()
            running[process] = start(process)
    assert [process.wait() for process in running.values()] == [0] * PROCESSES

    ledger = LedgerTable(open_store(str(tmp_path / "ledger")))
    recorder = Recorder(open_ledger=lambda: ledger, state=open_store(str(tmp_path / "state")))
    last = RunResult(
        name="t", uri="/t", status="failed", started_at=NOW, ended_at=NOW, problem="gone"
    )
    assert recorder.record(last, Origin(done_by="cli", run_id="last")) == []
    assert not [*(tmp_path / "state/ledger").glob("*.json")]
    found = ledger.read(["row_id"])["row_id"].to_pylist()
    journals = [
        line for each in tmp_path.glob("journal-*") for line in each.read_text().splitlines()
    ]
    recorded = {f"{line.split()[0]}-{row}" for line in journals for row in (0, 1)}
    assert len(journals) == PROCESSES * RUNS
    assert len(found) == len(set(found))
    assert recorded <= set(found)
    # A run that was killed has all of its rows or none.
    assert {row.rpartition("-")[0] for row in found if row.endswith("-1")} == {
        row.rpartition("-")[0] for row in found if row != "last-0"
    }
    print(f"ledger: runs {len(journals)}, kills {len(kills)}, rows {len(found)}")


if __name__ == "__main__":
    record_some(Path(sys.argv[1]), int(sys.argv[2]))
