"""The remedy of each refusal is played: the command then works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from delta_maintenance.cli.main import main
from tests.support.remedies.damages import DAMAGES
from tests.support.remedies.refusals import REFUSALS

ALL = {**REFUSALS, **DAMAGES}


def play(root: Path, command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    verb, *words = shlex.split(command)
    status = main([verb, str(root), *words])
    printed = capsys.readouterr()
    return status, " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize("name", ALL)
def test_the_remedy_of_a_refusal_helps(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = ALL[name]
    table = refusal.table.build(tmp_path / "table")
    root = tmp_path / "table"
    status, text = play(root, refusal.command, capsys)
    assert re.search(refusal.problem, text), text
    assert status or "left out" in text
    for step in refusal.steps:
        if not isinstance(step, str):
            step.do(table)
        else:
            status, text = play(root, step, capsys)
            assert status == 0, text
    status, text = play(root, refusal.then or refusal.command, capsys)
    assert status == 0 and not re.search(refusal.problem, text), text
