"""The examples in docs/guides/policies.md are correct."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from delta_maintenance.policies.definition import load_policy
from delta_maintenance.policies.definition.rules import Rules
from tests.support.tables.actions import add
from tests.support.tables.vacuum_tables import Folder

DOCUMENT = (Path(__file__).parents[2] / "docs" / "guides" / "policies.md").read_text()


def blocks(language: str) -> list[str]:
    """The examples in a language."""
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    for name in ("sales/orders", "bronze/raw/events", "bronze/scratch/mine"):
        table = Folder(lake / name)
        for number in range(25):
            table.log(add(f"{number}.parquet"))
            table.file(f"{number}.parquet")
    monkeypatch.setenv("LAKE", str(lake))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(blocks("yaml")[0])
    exec(blocks("python")[0], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[::2]] == [
        ["orders", "due"],
        ["bronze/raw/events", "due"],
    ]
    assert lines[1] == "planned ['fsck', 'checkpoint', 'vacuum']"
    policy = load_policy("policy.yaml")
    found = policy.table_at(f"{lake}/bronze/x").rules.vacuum
    assert found is not None and found.mode == "lite" and found.min_reclaimable == 10 << 30


def test_the_mistake_is_reported_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE", "/lake")
    monkeypatch.chdir(tmp_path)
    wrong = blocks("yaml")[0].replace("vacuum: {every: 7 days", "vacuum: {evry: 7 days")
    Path("policy.yaml").write_text(wrong)
    with pytest.raises(Exception) as raised:
        load_policy("policy.yaml")
    assert f"delta-maintenance: {raised.value}\n" in DOCUMENT


def test_every_rule_is_explained() -> None:
    assert [key for key in Rules.model_fields if f"`{key}`" not in DOCUMENT] == []
