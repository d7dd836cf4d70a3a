"""How long the API server takes for the history, the page of a table, and for a scrape.

    python -m benchmarks.scale.history_page           # 2,000 tables, a ledger of 100,000 operations
    python -m benchmarks.scale.history_page --tables 500 --operations 10000 --visits 50

A real API server of Airflow answers one request after the other over the loopback interface. Each
time is that of the whole answer, signing in included; the last column is the CPU time of the server
for each of the visits, which other work on the machine does not lengthen. The list of tables is
there to compare. Its first visit parses every assessment once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale.history_page", description=__doc__
    )
    parser.add_argument("--tables", type=int, default=2_000)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--deliveries", type=int, default=50, help="commits of the ledger")
    parser.add_argument("--visits", type=int, default=20)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="delta-history-") as folder:
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
            print("| page | first ms | median ms | worst ms | CPU ms |\n|---|---|---|---|---|")
            table = f"/table?name={tables[0][0]}"
            pages = ("/", "/history", table, "/history?q=gold", "/metrics")
            median = max(_told(server, page, given.visits) for page in pages)
    return int(median > TARGET_MS)


def _told(server: Server, path: str, visits: int) -> float:
    """Visits a page until it shows the ledger, and then as often as was asked for.

    Returns the median.
    """
    first, text = _asked(server, path)
    began, before = time.perf_counter(), [first]
    while "The ledger is being read" in text:
        time.sleep(0.2)
        again, text = _asked(server, path)
        before.append(again)
    read, used = time.perf_counter() - began, _cpu_seconds(server)
    times = [_asked(server, path)[0] for _ in range(visits)]
    used = (_cpu_seconds(server) - used) * 1000 / visits
    median = statistics.median(times)
    print(f"| {path} | {first:.0f} | {median:.0f} | {max(times):.0f} | {used:.0f} |")
    if len(before) > 1:
        print(f"the ledger was read after {read:.1f} s; until then {max(before):.0f} ms at most")
    return median


def _cpu_seconds(server: Server) -> float:
    """The CPU time of all processes of the server until now."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = process.read_text().rpartition(") ")[2].split()
            ticks += (int(fields[11]) + int(fields[12])) * (int(fields[3]) == server.session)
    return ticks / os.sysconf("SC_CLK_TCK")


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
