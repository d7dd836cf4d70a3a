"""Each remedy that a finding names is played on the table with the finding, which is then gone."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from delta_maintenance import clock
from delta_maintenance.cli.main import main
from delta_maintenance.operations.fsck.examination import examine
from delta_maintenance.operations.fsck.findings import KINDS
from delta_maintenance.storage import open_store
from tests.operations.fsck.test_findings import SEEDS
from tests.support.operations.fsck_findings import NOW, ROW_ID_COLUMNS
from tests.support.remedies.finding_remedies import BACKUP, REMEDIES, Played
from tests.support.suite.play import some
from tests.support.tables.sound_tables import SoundTable

MEMORY = ("archived-log-file", "archived-data-file")
"""Kinds that only a store with storage classes has."""
CASES = [
    pytest.param(kind, answer, id=f"{kind}-{number}")
    for kind, answers in REMEDIES.items()
    for number, answer in enumerate(answers)
    if isinstance(answer, Played) and kind in SEEDS
]


TIMELY = ("missing-tombstones", "missing-removed-file")
"""Kinds that end by themselves, with the retention of removed files."""


def found(table: SoundTable) -> dict[str, int]:
    return dict(examine(table.open(), now=clock.now(), deep=True).findings.counts)


def test_each_kind_has_a_remedy_that_is_played_or_a_question_for_a_person() -> None:
    assert REMEDIES.keys() == KINDS.keys()


@pytest.mark.parametrize(("kind", "remedy"), some(CASES, 40))
def test_after_the_remedy_the_finding_is_gone(
    kind: str, remedy: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = SEEDS[kind]
    if kind in TIMELY:
        monkeypatch.setattr(clock, "now", lambda: NOW)
    root = tmp_path / "table"
    root.mkdir()
    table = SoundTable(
        None if kind in MEMORY else open_store(root),
        configuration=ROW_ID_COLUMNS | dict(seed.configuration),
        extras=not seed.bare,
    )
    shutil.copytree(root, tmp_path / BACKUP)
    seed.spoil(table)
    before = found(table)
    assert before[kind]
    for step in remedy.steps:
        if isinstance(step, str):
            verb, *words = shlex.split(step)
            status = main([verb, str(root), *words])
            assert status == 0, (step, status)
        else:
            step.do(table)
    after = found(table)
    assert kind not in after
    worse = {name for name in after if KINDS[name].severity == "corrupt"}
    assert worse <= before.keys()
