"""The commands and programs that README.md and the first pages show run as they are shown."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from pathlib import Path

import pytest

from delta_maintenance.cli.main import main

ROOT = Path(__file__).parents[2]
STARTS = sorted(f"docs/start/{path.name}" for path in ROOT.glob("docs/start/*.md"))
PAGES = ("README.md", *STARTS)

# Commands that need the network or a running orchestrator. Other tests cover their effects, in
# tests/airflow/test_policy_dags.py, tests/dagster and tests/packaging/test_wheel.py.
ELSEWHERE = ("pip", "make", "airflow", "dg", "dagster", "cp", "export")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """The words of every command that a page shows."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table and the policy of docs/start/command-line.md."""
    folder = tmp_path_factory.mktemp("lake")
    (program,) = blocks("docs/start/command-line.md", "python")
    with contextlib.chdir(folder):
        exec(program, {})
    (policy,) = blocks("docs/start/command-line.md", "yaml")
    (folder / "policy.yaml").write_text(policy)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(page: str, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake)
    for words in commands(page):
        if words[0] not in ELSEWHERE:
            assert words[0] == "delta-maintenance", f"{page}: {words}"
            assert main(words[1:]) == 0, f"{page}: {words}"


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
