"""A temporary Airflow installation for the demo: commands, Dags and API server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

from rich.markup import escape
from telling import console

ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 120
_LINE = re.compile(r"\S+ \[\w+ *\] (?P<said>.*?) *\[(?P<who>[\w.]+)\] loc=")
"""2026-01-31T12:00:00Z [info     ] what is said     [who.says.so] loc=..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Airflow:
    """Commands of Airflow's in a home of their own, with all that they say kept in one log."""

    home: Path
    log: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables."""

    def run(self, *command: str) -> None:
        """Runs a command and shows the lines that tell the story; ends the demo if it fails."""
        console.print(f"   [dim]$ airflow {escape(' '.join(command))}[/]", soft_wrap=True)
        with (
            open(self.log, "a") as log,
            subprocess.Popen(
                _argv(*command),
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                log.write(line)
                lines.append(line)
                if said := _story(line):
                    console.print(f"     {escape(said)}", soft_wrap=True)
        if process.returncode:
            console.print("".join(lines[-40:]), markup=False)
            raise SystemExit(f"airflow {' '.join(command[:2])} failed")

    @contextmanager
    def api_server(self) -> Iterator[ApiServer]:
        """An API server that starts, and is stopped at the end. Whoever asks is let in, and only
        this machine can.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        environment = {
            **self._environment(),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": address,
            "AIRFLOW__API__WORKERS": "1",
        }
        console.print("   [dim]$ airflow api-server[/]")
        with open(self.log, "a") as log:
            process = subprocess.Popen(
                _argv("api-server"),
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                # It has children, and Ctrl-C is for the demo to answer.
                start_new_session=True,
            )
        try:
            yield ApiServer(address=address, process=process, log=self.log)
        finally:
            _stop(process)

    def _environment(self) -> dict[str, str]:
        return {
            # Nothing of an Airflow that this machine may have.
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            "AIRFLOW_HOME": os.fspath(self.home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}",
            "AIRFLOW__CORE__DAGS_FOLDER": os.fspath(ROOT / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[*]"}),
            **self.settings,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """An API server, which may still be starting."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def ask(self, page: str) -> tuple[int, str]:
        """Waits for the server; returns its answer to a signed-in user: status and text."""
        self._await()
        with urlopen(f"{self.address}/auth/token") as response:
            token = json.load(response)["access_token"]
        headers = {"Authorization": f"Bearer {token}"}
        with urlopen(Request(f"{self.address}{page}", headers=headers)) as response:
            return response.status, response.read().decode()

    def _await(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                urlopen(f"{self.address}/api/v2/version").close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    console.print(self.log.read_text()[-3000:], markup=False)
                    raise SystemExit("airflow api-server did not start") from None
                time.sleep(0.2)


def _story(line: str) -> str | None:
    """What a line of Airflow's log says about our tasks."""
    if (parts := _LINE.match(line)) is None:
        return None
    said, who = parts["said"], parts["who"]
    if "starting task_id=" in said:
        return f"task {said.partition('task_id=')[2].partition(' ')[0]}"
    # Ours, but for Spark's own log, its frame, and what Airflow says in a sensor's name.
    if "delta_maintenance_airflow." not in who or who.endswith("JobHook"):
        return None
    return None if said.startswith(("::", "Success criteria met")) else f"  {said}"


def _argv(*command: str) -> list[str]:
    return [sys.executable, "-m", "airflow", *command]


def _stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
