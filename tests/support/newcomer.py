"""A person who follows the documents with the wheel, an empty folder and an empty environment."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LANGUAGES = ("sh", "python", "yaml")
_VARIABLES = ("HOME", "LC_ALL", "LANG", "JAVA_HOME", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "TERM")


@dataclass
class Newcomer:
    """Runs what pages show, and keeps the time that each step takes."""

    folder: Path
    wheel: Path
    steps: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work = self.folder / "work"
        self.work.mkdir()
        self.environment = {
            **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
            "PATH": f"{self.folder / 'venv' / 'bin'}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.folder / "venv"),
            "DAGSTER_DISABLE_TELEMETRY": "1",
        }
        with self.step("an empty environment"):
            self._make_environment()

    def _make_environment(self) -> None:
        # Not by ensurepip, which some distributions of Python leave out.
        place = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", place / "bin" / "python"]
        subprocess.run([*pip, "install", "pip"], check=True)

    @property
    def minutes(self) -> float:
        """The minutes of all steps together."""
        return sum(seconds for _, seconds in self.steps) / 60

    def report(self, title: str, bar: float) -> None:
        """Prints the seconds of each step, and the sum beside the minutes that are allowed."""
        for what, seconds in self.steps:
            print(f"{title}: {seconds:6.1f} s  {what}")
        print(f"{title}: {self.minutes:.1f} min of {bar:.0f}")

    def follow(self, page: str, *, since: str = "", until: str = "", writes: bool = True) -> str:
        """Does what the blocks of a page say, from one line of it to another; returns what the
        commands printed.

        A block of YAML is the contents of the file that the text above it names last; without
        `writes`, it only shows what a command has written.
        """
        text = (ROOT / page).read_text()
        text = text[text.index(since) :]
        text = text[: text.index(until)] if until else text
        told = []
        blocks = re.finditer(rf"^```({'|'.join(_LANGUAGES)})\n(.*?)^```", text, re.DOTALL | re.M)
        for found in blocks:
            language, block = found.groups()
            if language == "python":
                told.append(
                    self.run(f"python - <<'END'\n{block}END", name="the program of the page")
                )
            elif language == "yaml" and not writes:
                continue
            elif language == "yaml":
                named = re.findall(r"`([\w./-]+\.yaml)`", text[: found.start()])
                (self.work / named[-1]).write_text(block)
            else:
                told += [self.run(line) for line in _lines(block)]
        return "\n".join(told)

    def run(self, command: str, *, name: str | None = None) -> str:
        """Runs a command of a page in the shell; the wheel takes the place of the release."""
        words = shlex.split(command, comments=True) if name is None else []
        if words[:1] == ["cd"]:
            self.work = self.work / words[1]
            return ""
        if words[:1] == ["export"]:
            value = subprocess.run(
                ["bash", "-c", f"{command}; printenv {words[1].partition('=')[0]}"],
                cwd=self.work,
                env=self.environment,
                check=True,
                capture_output=True,
                text=True,
            )
            self.environment[words[1].partition("=")[0]] = value.stdout.strip()
            return ""
        installs = words[:2] == ["pip", "install"]
        text = re.sub(r"\bdelta-maintenance(?=[\[' ]|$)", str(self.wheel), command, count=1)
        with self.step(name or command):
            done = subprocess.run(
                ["bash", "-euc", text if installs else command],
                cwd=self.work,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
        return done.stdout

    def quietly(self, command: str) -> str:
        """Runs a command that is no step; returns what it prints, also if it fails."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        return done.stdout

    @contextmanager
    def running(self, command: str, log: Path) -> Iterator[None]:
        """Runs a server while the block lasts, and ends all of its processes after it."""
        with log.open("wb") as file:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.work,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()

    def wait_for(self, what: str, found: Callable[[], Any], *, seconds: float, log: Path) -> Any:
        """Waits for an event, as a step; returns the first answer that is not empty."""
        with self.step(what):
            return self.until(found, seconds=seconds, log=log)

    def until(self, found: Callable[[], Any], *, seconds: float, log: Path) -> Any:
        """Waits for an event; returns the first answer that is not empty."""
        end = time.monotonic() + seconds
        while not (answer := found()):
            assert time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.5)
        return answer

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Counts the time of the block, such as clicks in a browser."""
        began = time.monotonic()
        yield
        self.steps.append((what.splitlines()[0][:100], time.monotonic() - began))


def _lines(block: str) -> list[str]:
    joined = block.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
