"""The command line run inside the test's own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.cli import output
from delta_maintenance.cli.main import main
from tests.support.tables.actions import add, features, metadata, protocol
from tests.support.tables.table_builder import TableBuilder


@dataclass(frozen=True)
class Outcome:
    """The end of a run of the command."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes buffer their stdout, as they do for users: it may fail as late as in a flush."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs the command with these words and gives back how it ended."""
    # On a slow machine, lines about progress would be among the messages.
    monkeypatch.setattr(output, "_QUIET", timedelta.max)

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.fixture
def builder(tmp_path: Path) -> TableBuilder:
    """A sound table on disk: three commits, three files."""
    builder = TableBuilder(tmp_path / "table")
    builder.commit([protocol(), metadata(), add("a", size=10)])
    builder.commit([add("b", size=20)])
    builder.commit([add("c", size=30)])
    return builder


@pytest.fixture
def table(builder: TableBuilder) -> str:
    """The path of that table."""
    return builder.store.root


@pytest.fixture
def v2_table(builder: TableBuilder) -> str:
    """The path of that table after a fourth commit asked for V2 checkpoints."""
    policy = metadata(configuration={"delta.checkpointPolicy": "v2"})
    builder.commit([features("v2Checkpoint"), policy, add("d")])
    return builder.store.root
