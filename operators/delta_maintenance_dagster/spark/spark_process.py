"""The process that submits a Spark application: its output and its termination."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from delta_maintenance.redaction import redact

_GRACE_SECONDS = 15
_TAIL = 20
_YARN_APPLICATION = re.compile(r"\b(application_\d+_\d+)\b")
_POD = re.compile(r"\bpod name: ([a-z0-9.-]+)")
_NAMESPACE = re.compile(r"\bnamespace: ([a-z0-9-]+)")


@dataclass(kw_only=True)
class SparkProcess:
    """One run of `spark-submit`, or of a driver of Spark Connect.

    If `run` ends early, especially by an interrupt of Dagster, the application is ended too: a
    local driver with its whole process group, and a driver on a cluster by the means of the
    cluster.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    heard: Callable[[str], None]
    """Called with every line as it arrives."""
    on_cluster: bool = False
    master: str | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))
    """The last lines, to explain a failure."""
    _application: str | None = None
    _namespace: str = "default"

    def run(self) -> int:
        """Runs to the end and returns the exit status."""
        process = subprocess.Popen(
            self.command,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # A separate process group: spark-submit, the JVM and the Python driver are ended
            # together.
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                # Spark quotes addresses of its configuration and of the user's.
                self._hear(redact(line.rstrip()))
            return process.wait()
        finally:
            if process.poll() is None:
                self._end(process)
            if process.stdout is not None:
                process.stdout.close()

    def _hear(self, line: str) -> None:
        if not line:
            return
        self.tail.append(line)
        if self.on_cluster:
            if found := _YARN_APPLICATION.search(line) or _POD.search(line):
                self._application = found[1]
            if found := _NAMESPACE.search(line):
                self._namespace = found[1]
        self.heard(line)

    def _end(self, process: subprocess.Popen[str]) -> None:
        if self.on_cluster and self._application is not None:
            # Ending the client does not end the application on the cluster.
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    self._kill_command(self._application),
                    env=dict(self.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=2 * _GRACE_SECONDS,
                )
        _signal_group(process, signal.SIGTERM)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Including processes of the group that outlived the main one.
            _signal_group(process, signal.SIGKILL)
            process.kill()
            process.wait()

    def _kill_command(self, application: str) -> list[str]:
        if application.startswith("application_"):
            return ["yarn", "application", "-kill", application]
        master = ["--master", self.master] if self.master else []
        return [self.command[0], *master, "--kill", f"{self._namespace}:{application}"]


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
