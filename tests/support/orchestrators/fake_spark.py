"""A `spark-submit` that is a script, and a server that acts as the resource manager of YARN."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

RESULT = {
    "table": "s3://lake/events",
    "version": 9,
    "status": "written",
    "kind": "v2-json",
    "engine": "spark",
}
DONE = {"status": "done", "result": RESULT}
SUBMIT = """\
#!{python}
import json, os, subprocess, sys, time
words = sys.argv[1:]
with open({seen!r}, "a") as file:
    stdin = os.path.realpath("/proc/self/fd/0")
    print(json.dumps({{"words": words, "pid": os.getpid(), "stdin": stdin}}), file=file)
{acts}
"""


class FakeSpark:
    """The `spark-submit` on the worker's path: records how it was started, and simulates a job."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "bin" / "spark-submit"
        self._file.parent.mkdir()
        self._seen = folder / "seen"

    def acts(self, *lines: str) -> None:
        text = SUBMIT.format(python=sys.executable, seen=str(self._seen), acts="\n".join(lines))
        self._file.write_text(text)
        self._file.chmod(0o755)

    @property
    def folder(self) -> Path:
        return self._file.parent

    @property
    def path(self) -> str:
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"

    @property
    def starts(self) -> list[dict[str, Any]]:
        if not self._seen.exists():
            return []
        return [json.loads(line) for line in self._seen.read_text().splitlines()]


def reports(report: object) -> str:
    """Returns a line of the script that writes a report atomically."""
    return (
        "path = words[words.index('--report') + 1]\n"
        f"open(path + '.new', 'w').write({json.dumps(report)!r})\n"
        "os.rename(path + '.new', path)"
    )


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    connection = {"conn_type": "spark", **fields}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill_until(ended: threading.Event, task: Any) -> None:
    """Kills a task from another thread. The driver can be at work before the thread that started it
    knows its process, so the task is killed again if that ends nothing.
    """
    task.on_kill()
    while not ended.wait(5):
        task.on_kill()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        # A zombie process does not count as running.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class ResourceManager(BaseHTTPRequestHandler):
    """The resource manager of YARN: describes an application, and ends it on request."""

    answers: list[tuple[str, str]]
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(f"GET {self.path}")
        state, final = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self._answer({"app": {"state": state, "finalStatus": final, "diagnostics": ""}})

    def do_PUT(self) -> None:
        self.requests.append(f"PUT {self.path}")
        self._answer({"state": "KILLED"})

    def _answer(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


class States(dict[str, Any]):
    """The state store of a task."""

    def set(self, key: str, value: Any, **_: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


SUBMITTED = (
    "print('INFO Client: Submitted application application_1_0001', flush=True)",
    "print('\\t tracking URL: http://manager:8088/proxy/application_1_0001/', flush=True)",
)
