"""A task that is killed with SIGKILL while its Spark job runs, and is retried. Real Spark."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock
from delta_maintenance.operations import fsck
from delta_maintenance_airflow.operators import DeltaCheckpointOperator
from tests.support.logs.sidecar_rows import sidecar_rows
from tests.support.tables.actions import add, features, metadata, remove
from tests.support.tables.table_builder import TableBuilder

pytest.importorskip("airflow.providers.apache.spark", reason="NO SPARK PROVIDER")
pytestmark = [
    pytest.mark.spark,
    # The provider leaves the pipe from spark-submit to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

FIRST_TRY = """\
import json, sys
from pathlib import Path
from unittest.mock import MagicMock
from delta_maintenance_airflow.operators import DeltaCheckpointOperator

linked, arguments = sys.argv[1:]
ti = MagicMock(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0)
# Told as soon as the driver has its session: the work has just begun.
ti.xcom_push.side_effect = lambda key, value: Path(linked).write_text(f"{key} {value}")
task = DeltaCheckpointOperator(task_id="task", **json.loads(arguments))
task.execute({"ti": ti, "outlet_events": {}, "params": {}})
"""
JAVA = shutil.which("java") or "JAVA_HOME" in os.environ
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.ui.port": "0",
    "spark.log.level": "WARN",
}


@pytest.mark.skipif(
    shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="NO JAVA"
)
@pytest.mark.parametrize("same_worker", [True, False])
def test_a_second_try_beside_the_driver_of_the_first_does_no_harm(
    same_worker: bool, tmp_path: Path, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path / "table")
    table.commit([features("v2Checkpoint"), metadata()])
    for commit in range(5):
        table.commit([add(f"{commit}-{n}", stats='{"numRecords":1}') for n in range(100)])
    table.commit([remove(f"3-{n}", deletionTimestamp=1 << 43) for n in range(10)])
    expected = table.open().snapshot().live_files().sort_by("path")
    arguments = {
        "table_uri": str(tmp_path / "table"),
        "engine": "spark",
        "options": {"kind": "v2-json", "actions_per_sidecar": 250},
        "spark_conf": CONF,
    }
    for worker in ("first", "second"):
        (tmp_path / worker).mkdir()
    connection = json.dumps({"conn_type": "spark", "host": "local[1]"})
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    # Short lives: compiling costs more than it brings.
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    linked = tmp_path / "linked"
    with (tmp_path / "first.log").open("wb") as out:
        first = subprocess.Popen(
            [sys.executable, "-c", FIRST_TRY, str(linked), json.dumps(arguments)],
            env={**os.environ, "TMPDIR": str(tmp_path / "first")},
            stdout=out,
            stderr=out,
        )
    deadline = time.monotonic() + 300
    while not (linked.exists() and linked.read_text()):
        assert first.poll() is None, (tmp_path / "first.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert linked.read_text().startswith("delta_spark_ui http://127.0.0.1:")
    [noted] = (tmp_path / "first").glob("delta-maintenance-*/*/driver")
    driver = int(noted.read_text())
    os.killpg(driver, 0)
    assert table.open().snapshot().log.checkpoint is None

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("first" if same_worker else "second")))
    outcome = DeltaCheckpointOperator(task_id="task", **arguments).execute(task_context)
    wait_for_the_end_of(driver)
    gc.collect()

    assert outcome["version"] == 6
    if same_worker:
        # The report is that of the first try's driver.
        assert (outcome["engine"], outcome["num_files"]) == ("spark", 490)
    else:
        assert outcome["status"] in ("written", "already-there", "nothing-to-do")
    snapshot = table.open().snapshot()
    assert snapshot.log.checkpoint is not None and snapshot.log.segment.tail == ()
    assert snapshot.live_files().sort_by("path") == expected
    assert sum(sidecar_rows(table.open(), 6).values()) == 500
    found = fsck.survey(table.open(), fsck.FsckOptions(), now=clock.now()).plan.counts
    # There never were any data files.
    assert {count.kind for count in found} == {"missing-data-file", "missing-removed-file"}
    top_level = [name for name in table.names() if ".checkpoint." in name]
    assert len(top_level) in ((1,) if same_worker else (1, 2))


def wait_for_the_end_of(process_group: int) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            os.killpg(process_group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("the driver goes on and on")
