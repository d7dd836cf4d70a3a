"""The example project in `dagster dev`: a commit triggers a run, and a browser visits the pages.

`DELTA_MAINTENANCE_SCREENSHOTS=docs/images` stores the pictures for the documentation.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.support.servers.browser import open_browser
from tests.support.servers.ports import free_port

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "dagster"
SENSOR = {
    "repositoryName": "__repository__",
    "repositoryLocationName": "lakehouse",
    "sensorName": "delta_maintenance_commits",
}
RUNS = """
{ runsOrError { ... on Runs { results {
    runId status jobName tags { key value } assetSelection { path } } } } }
"""
START = """
mutation Start($sensor: SensorSelector!) {
  startSensor(sensorSelector: $sensor) { __typename ... on PythonError { message } } }
"""
ASSETS = """
{ table: assetNodeOrError(assetKey: {path: ["lake", "events"]}) { ... on AssetNode {
    isExecutable assetMaterializations { runId }
    assetObservations(limit: 5) { tags { key value } } } }
  maintenance: assetNodeOrError(assetKey: {path: ["lake", "events", "maintenance"]}) {
    ... on AssetNode { staleStatus } } }
"""


@dataclass
class Dagster:
    """A running `dagster dev`, and what the example needs."""

    address: str
    project: Path
    environment: dict[str, str]
    log: Path

    def ask(self, query: str, **variables: Any) -> Any:
        """Returns the answer of GraphQL."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(f"{self.address}/graphql", body, headers), timeout=300) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer
        return answer["data"]

    def write_events(self, commits: int = 1) -> None:
        """Makes commits like another writer."""
        subprocess.run(
            [sys.executable, "write_events.py", str(commits)],
            cwd=self.project,
            env=self.environment,
            check=True,
        )

    def wait_for(self, found: Callable[[], Any], *, seconds: float = 300) -> Any:
        """Returns the first answer that is not empty."""
        end = time.monotonic() + seconds
        while True:
            answer = found()
            if answer:
                return answer
            assert time.monotonic() < end, self.log.read_text()[-5000:]
            time.sleep(0.5)

    def run_for(self, version: int) -> dict[str, Any] | None:
        """The run that the sensor asked for because of a version, once it has ended."""
        for run in self.ask(RUNS)["runsOrError"]["results"]:
            tags = {tag["key"]: tag["value"] for tag in run["tags"]}
            if tags.get("delta/version") == str(version):
                assert run["status"] not in ("FAILURE", "CANCELED"), self.log.read_text()[-5000:]
                return {**run, "tags": tags} if run["status"] == "SUCCESS" else None
        return None


@pytest.fixture(scope="module")
def dagster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dagster]:
    pytest.importorskip("deltalake", reason="NO DELTALAKE: the example writes with it")
    pytest.importorskip("dagster_webserver", reason="NO DAGSTER WEBSERVER: install it")
    folder = tmp_path_factory.mktemp("dagster")
    project = folder / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
    component = project / "src" / "lakehouse" / "defs" / "delta_tables" / "defs.yaml"
    text = component.read_text()
    assert "interval_seconds: 30" in text
    component.write_text(text.replace("interval_seconds: 30", "interval_seconds: 1"))
    (folder / "home").mkdir()
    (folder / "lake").mkdir()
    (folder / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(folder / "home"),
        "LAKE": str(folder / "lake"),
        "PYTHONPATH": str(project / "src"),
    }
    port = free_port()
    log = folder / "dagster.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "dagster"), "dev", "--port", str(port)],
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        started = Dagster(f"http://127.0.0.1:{port}", project, environment, log)
        started.write_events(8)
        started.wait_for(lambda: process.poll() is None and _answers(started))
        yield started
    finally:
        _end(process)


def _answers(dagster: Dagster) -> bool:
    try:
        dagster.ask("{ version }")
    except (URLError, ConnectionError, TimeoutError):
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts the process like a terminal, so that it ends its own processes; then kills the
    rest.
    """
    try:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_commit_triggers_the_sensor_and_the_run_is_visible(dagster: Dagster) -> None:
    assert dagster.ask(START, sensor=SENSOR)["startSensor"]["__typename"] == "Sensor"
    # The first poll finds the existing table.
    dagster.wait_for(lambda: dagster.run_for(7))
    assert (Path(dagster.environment["LAKE"]) / "events/_delta_log/_last_checkpoint").exists()

    dagster.write_events()
    run = dagster.wait_for(lambda: dagster.run_for(8))
    assert run["jobName"] == "delta_maintenance"
    assert run["assetSelection"] == [{"path": ["lake", "events", "maintenance"]}]

    assets = dagster.ask(ASSETS)
    assert assets["table"]["assetMaterializations"] == []
    observed = [
        tag["value"]
        for event in assets["table"]["assetObservations"]
        for tag in event["tags"]
        if tag["key"] == "dagster/data_version"
    ]
    # By the sensor, and by the maintenance that it requested.
    assert observed == ["8", "8", "7", "7"]
    assert assets["maintenance"]["staleStatus"] == "FRESH"
    # Nothing else has moved: no further run comes of the maintenance itself.
    time.sleep(3)
    assert len(dagster.ask(RUNS)["runsOrError"]["results"]) == 2

    kept = os.environ.get("DELTA_MAINTENANCE_SCREENSHOTS")
    pictures = Path(kept) if kept else dagster.log.parent
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1500})
        page.set_default_timeout(120_000)
        # Suppresses the invitation that covers the first page.
        page.add_init_script("localStorage.setItem('communityNux', '1')")
        page.goto(f"{dagster.address}/assets/lake/events/maintenance")
        page.get_by_text("commits_to_replay_after").wait_for(timeout=120_000)
        for text in ("delta_maintenance_commits", "nothing-due", "version_after"):
            page.get_by_text(text).first.wait_for(timeout=120_000)
        page.screenshot(path=pictures / "dagster-maintenance.png")
        row = page.locator("tr").filter(has=page.get_by_text("log", exact=True))
        row.get_by_text("[Show Markdown]").click()
        picture = page.get_by_role("img", name="the log up to version 8")
        picture.wait_for(timeout=120_000)
        # Drawn, not only there.
        assert picture.evaluate("image => image.naturalWidth") == 640
        page.screenshot(path=pictures / "dagster-log.png")
        page.goto(f"{dagster.address}/assets/lake/events?view=checks")
        for name in ("checkpoint_lag", "log_length", "retention_settings", "protocol"):
            page.get_by_text(name).first.wait_for(timeout=120_000)
        page.screenshot(path=pictures / "dagster-checks.png")
