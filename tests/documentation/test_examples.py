"""The commands and programs that README.md and the first pages show run as they are shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from delta_maintenance.cli.main import main

ROOT = Path(__file__).parents[2]
STARTS = sorted(f"docs/start/{path.name}" for path in ROOT.glob("docs/start/*.md"))
PAGES = ("README.md", *STARTS)

# Commands that need the network or a running orchestrator. Other tests cover their effects, in
# tests/airflow/test_policy_dags.py, tests/dagster and tests/packaging/test_wheel.py.
ELSEWHERE = ("pip install ", "make ", "airflow ", "dg ", "dagster ", "cp dags/", "export AIRFLOW__")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """Every command that a page shows, without its comment."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table that docs/start/command-line.md creates, and its policy."""
    folder = tmp_path_factory.mktemp("lake")
    (program,) = blocks("docs/start/command-line.md", "python")
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)
    (policy,) = blocks("docs/start/command-line.md", "yaml")
    (folder / "policy.yaml").write_text(policy)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(page: str, lake: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ours = [command for command in commands(page) if not command.startswith(ELSEWHERE)]
    for command in ours:
        assert command.startswith("delta-maintenance "), f"{page}: {command}"
        run = subprocess.run(
            command,
            shell=True,
            cwd=lake,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, f"{page}: {command}\n{run.stderr}"


def test_the_tutorial_shows_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("docs/start/command-line.md", "python")
    exec(program, {})
    assert _commits_since_checkpoint(capsys) == 40
    assert main(["checkpoint", "lake/events"]) == 0
    assert re.search("commits since +0\n", _output(capsys, "inspect", "lake/events"))
    assert _commits_since_checkpoint(capsys) == 0
    assert "nothing" in _output(capsys, "vacuum", "lake/events")


def _commits_since_checkpoint(capsys: pytest.CaptureFixture[str]) -> int:
    document = json.loads(_output(capsys, "inspect", "lake/events", "--json"))
    number: int = document["log"]["commits_since_checkpoint"]
    return number


def _output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out
