"""The cost of a run over many tables on which nothing is due.

Takes minutes, so it runs only if `DELTA_MAINTENANCE_TABLES` is a number of tables.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

TABLES = int(os.environ.get("DELTA_MAINTENANCE_TABLES", "0"))
_DEFINITIONS = """
from pathlib import Path
from dagster.components.testing.utils import component_defs
from delta_maintenance_dagster import DeltaMaintenanceComponent

defs = component_defs(component=DeltaMaintenanceComponent.from_attributes_dict(attributes={{
    "defaults": {{"checkpoint": {{"max_commits": 100}}}},
    "tables": [{{"uri": str(path), "key": f"lake/{{path.name}}"}}
               for path in sorted(Path({lake!r}).iterdir())],
    "execution": {execution!r},
}}))
"""


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not TABLES, reason="DELTA_MAINTENANCE_TABLES names no number of tables")
@pytest.mark.parametrize("execution", [{"tables_per_step": 50}, {"in_process": True}])
def test_a_run_over_idle_tables_costs_minutes_at_most(
    tmp_path: Path, execution: dict[str, object]
) -> None:
    lake, home = tmp_path / "lake", tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    table = TableBuilder(lake / "t00000")
    table.commit([protocol(), metadata()])
    for number in range(3):
        table.commit([add(f"{number}.parquet")])
    for number in range(1, TABLES):
        shutil.copytree(lake / "t00000", lake / f"t{number:05}")
    file = tmp_path / "definitions.py"
    file.write_text(_DEFINITIONS.format(lake=str(lake), execution=execution))
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "job", "execute", "-f", file, "-j", "delta_maintenance"],
        env={**os.environ, "DAGSTER_HOME": str(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr[-3000:]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = time.monotonic() - started
    print(f"{TABLES} idle tables, {execution}: {cpu:.0f} s of CPU in {seconds:.0f} s")
    assert cpu < 0.6 * TABLES + 60
