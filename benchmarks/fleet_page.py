"""How long the API server takes for the page of the fleet, and for the page of a table.

    python -m benchmarks.fleet_page                 # 2,000 tables, a ledger of 100,000 operations
    python -m benchmarks.fleet_page --tables 500 --operations 10000 --visits 50

A real API server of Airflow answers one request after the other over the loopback interface. Each
time is that of the whole answer, signing in included. The first visit to the fleet comes after the
first one to the list, which parses every assessment once.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import Request, urlopen

from delta_maintenance.ledger.table import LedgerTable
from delta_maintenance.policies.assessments import AssessmentEntry
from delta_maintenance.storage import open_store
from tests.support.orchestrators.health_server import Server, airflow_server
from tests.support.tables.assessed_tables import fill
from tests.support.tables.ledger_rows import append, some_rows

TARGET_MS = 300
POLICY = """\
version: 1
ledger: {folder}/ledger
prices: {{currency: EUR, requests: {{write: 5, list: 5, read: 0.4}}, cpu_hour: 0.04}}
tables: [{{name: lake, pattern: 's3://lake/**', owner: platform}}]
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints. Returns 1 where the target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_page", description=__doc__)
    parser.add_argument("--tables", type=int, default=2_000)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--deliveries", type=int, default=50, help="commits of the ledger")
    parser.add_argument("--visits", type=int, default=20)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="delta-fleet-") as folder:
        home = Path(folder)
        with airflow_server(home, policy=POLICY.format(folder=folder)) as server:
            fill(server.store, given.tables)
            tables = [
                (each.name, each.assessment.uri)
                for each in server.store.load_all()
                if isinstance(each, AssessmentEntry)
            ]
            rows = some_rows(tables, given.operations, now=datetime.now(UTC))
            ledger = LedgerTable(open_store(f"{folder}/ledger"))
            append(ledger, rows, deliveries=given.deliveries)
            print("| page | first ms | median ms | worst ms |\n|---|---|---|---|")
            first, _ = _asked(server, "/")
            print(f"| / | {first:.0f} | | |")
            pages = ("/fleet", f"/table?name={tables[0][0]}", "/fleet?q=gold")
            worst = max(_told(server, page, given.visits) for page in pages)
    return int(worst > TARGET_MS)


def _told(server: Server, path: str, visits: int) -> float:
    """Visits a page until it shows the ledger, and then as often as was asked for.

    Returns the worst of all visits.
    """
    first, text = _asked(server, path)
    began, before = time.perf_counter(), [first]
    while "From the ledger" not in text:
        time.sleep(0.2)
        again, text = _asked(server, path)
        before.append(again)
    read = time.perf_counter() - began
    times = [_asked(server, path)[0] for _ in range(visits)]
    print(f"| {path} | {first:.0f} | {statistics.median(times):.0f} | {max(times):.0f} |")
    if len(before) > 1:
        print(f"the ledger was read after {read:.1f} s; until then {max(before):.0f} ms at most")
    return max(*before, *times)


def _asked(server: Server, path: str) -> tuple[float, str]:
    request = Request(
        f"{server.address}/delta-maintenance{path}",
        headers={"Authorization": f"Bearer {server.token}"},
    )
    began = time.perf_counter()
    with urlopen(request) as response:
        text = response.read().decode()
    return (time.perf_counter() - began) * 1000, text


if __name__ == "__main__":
    raise SystemExit(main())
