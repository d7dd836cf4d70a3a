"""An API server of Airflow with the health page, and browser sessions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from delta_maintenance.policies import AssessmentStore
from tests.support.orchestrators.policy_dags import DAGS
from tests.support.servers.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Frame, Page


PREPARE = """
from tests.support.orchestrators.airflow_versions import DagBag, sync_bag_to_db
from airflow.models.dagbundle import DagBundleModel
from airflow.utils import db
from airflow.utils.session import create_session

db.initdb()
with create_session() as session:
    session.merge(DagBundleModel(name="dags-folder"))
sync_bag_to_db(DagBag(), "dags-folder", None)
"""


@dataclass
class Server:
    """A running API server with many assessed tables, and a user who may sign in."""

    address: str
    store: AssessmentStore
    token: str
    session: int = 0
    """The session of its processes."""

    def ask(self, path: str) -> Any:
        """Returns the answer of Airflow's own API."""
        request = Request(
            f"{self.address}/api/v2{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urlopen(request) as response:
            return json.load(response)


def signed_in(address: str, user: str = "somebody") -> str:
    request = Request(
        f"{address}/auth/token",
        data=json.dumps({"username": user, "password": "secret"}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(request) as response:
        token: str = json.load(response)["access_token"]
    return token


def eventually(
    action: Callable[[], str], process: subprocess.Popen[bytes], log: Path, *, seconds: int = 480
) -> str:
    """Repeats an action until it succeeds, and returns its result."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Airflow did not start: {log.read_text()[-3000:]}") from None
            time.sleep(0.5)


@contextmanager
def airflow_server(home: Path, *, policy: str, scheduler: bool = False) -> Iterator[Server]:
    """Runs an API server with a policy and the Dags of this repository, and with an empty folder of
    assessments; with `scheduler` also what runs tasks.
    """
    shutil.copytree(DAGS, home / "dags")
    (home / "passwords.json").write_text('{"somebody": "secret"}')
    (home / "policy.yaml").write_text(policy)
    port = free_port()
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of the tests, and long enough for this algorithm",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "1",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "somebody:admin",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS": str(home / "assessments"),
        "AIRFLOW__DELTA_MAINTENANCE__METRICS": "True",
        "AIRFLOW__DELTA_MAINTENANCE__POLICY": str(home / "policy.yaml"),
    }
    subprocess.run(
        [sys.executable, "-c", PREPARE],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
    )
    with ExitStack() as running:
        process = running.enter_context(_service(home, "api-server", environment))
        address = f"http://127.0.0.1:{port}"
        token = eventually(lambda: signed_in(address), process, home / "api-server.log")
        if scheduler:
            running.enter_context(_service(home, "scheduler", environment))
        yield Server(address, AssessmentStore(str(home / "assessments")), token, process.pid)


@contextmanager
def _service(
    home: Path, name: str, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", name],
            env=dict(environment),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def visitor(
    browser: Browser, server: Server, *, theme: str = "light", refused: int | None = None
) -> Iterator[Page]:
    """Opens a page as a signed-in user; fails if the browser reports a problem.

    `refused` is an HTTP status that exactly one answer must have.
    """
    complaints: list[str] = []
    width, height = 1600, 950
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
    )
    context.add_cookies([{"name": "_token", "value": server.token, "url": server.address}])
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text)
            if message.type == "error" or "Content Security Policy" in message.text
            else None
        ),
    )
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((server.address, "data:", "blob:"))
            else complaints.append(f"asked for {request.url}")
        ),
    )
    yield page
    context.close()
    expected = [text for text in complaints if f"status of {refused}" in text]
    assert complaints == expected
    assert (refused is not None) == bool(expected)


def framed(page: Page) -> Frame:
    """Returns our page within Airflow's page."""
    # By the element of Airflow's page: those within the frame go when the frame navigates.
    frame = page.wait_for_selector("iframe").content_frame()
    assert frame is not None
    frame.wait_for_selector("h1")
    return frame


def picture(page: Page, name: str, **options: Any) -> None:
    folder = os.environ.get("DELTA_MAINTENANCE_SCREENSHOTS")
    if folder:
        page.screenshot(path=f"{folder}/{name}.png", **options)
