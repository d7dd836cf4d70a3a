"""The lines of `assess` for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from delta_maintenance.operations.core.documents import one_line_rows, printable
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

TEXTS = st.text(st.characters(categories=("L", "N", "Zs")), max_size=90)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A policy for a long log, a short one, and a folder that is no table."""
    for name, commits in (("long", 9), ("short", 1)):
        table = TableBuilder(tmp_path / "lake" / name)
        table.commit([protocol(), metadata()])
        for number in range(commits):
            table.commit([add(f"{number}.parquet")])
    (tmp_path / "lake" / "lost").mkdir()
    path = tmp_path / "policy.yaml"
    path.write_text(
        f"""
version: 1
defaults: {{checkpoint: {{max_commits: 5}}, vacuum: true, approval: [vacuum]}}
tables:
- {{name: long, uri: {tmp_path}/lake/long, owner: sales}}
- {{name: short, uri: {tmp_path}/lake/short}}
- {{name: lost, uri: {tmp_path}/lake/lost, owner: sales}}
"""
    )
    return path


def test_each_table_is_one_line_with_its_operations_and_the_last_line_has_the_sums(
    cli: Any, config: Path
) -> None:
    outcome = cli("assess", config)
    assert [line.split(maxsplit=1) for line in outcome.out.splitlines()] == [
        ["table", "status    due"],
        ["long", "due       checkpoint (10 → 0 log files to replay), vacuum (to check)"],
        ["short", "to check  vacuum"],
        ["lost", "failed"],
        ["3", "tables: 1 due, 1 to check, 1 failed; see why with --reasons"],
    ]
    assert outcome.status == 5 and outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--due"], ["long", "short"]),
        (["--failed"], ["lost"]),
        (["--due", "--failed"], ["long", "short", "lost"]),
    ],
)
def test_only_the_tables_in_question_are_shown(
    cli: Any, config: Path, flags: list[str], names: list[str]
) -> None:
    text, document = cli("assess", config, *flags), cli("assess", config, *flags, "--json").document
    assert [line.split()[0] for line in text.out.splitlines()[1:-1]] == names
    assert [each["name"] for each in document] == names
    assert text.out.splitlines()[-1].startswith("3 tables: ") and text.status == 5


def test_reasons_stand_beside_each_operation(cli: Any, config: Path) -> None:
    out = cli("assess", config, "--reasons").out
    assert "no run of vacuum is recorded" in out and "--reasons" not in out


def test_tables_are_counted_by_owner_and_by_reason(cli: Any, config: Path) -> None:
    by_owner = [
        line.split() for line in cli("assess", config, "--group-by", "owner").out.split("\n")
    ]
    assert ["sales", "1", "1"] in by_owner and ["no", "owner", "1"] in by_owner
    by_reason = cli("assess", config, "--group-by", "reason").out
    assert by_reason.count("no run of vacuum is recorded") == 1
    assert cli("assess", config, "--group-by", "owner", "--json").status == 2


@example(rows=[("t", "due", "long " * 18)], width=60)
@example(rows=[("name" * 20, "due", "宽" * 40)], width=60)
@example(rows=[("", "", "\xa00")], width=60)
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=5), st.integers(60, 200))
def test_no_line_is_wider_than_the_terminal_but_a_name(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    rows = [(printable(name), status[:14], printable(due)) for name, status, due in rows]
    lines = [*one_line_rows(("table", "status", "due"), rows, width=width)]
    names = {name for name, _, _ in rows}
    assert all(cell_len(line) <= width or line in names for line in lines)
    assert len(lines) <= 1 + 2 * len(rows)
    wide = [*one_line_rows(("table", "status", "due"), rows, width=1 << 16)]
    assert all(due in line for line, (_, _, due) in zip(wide[1:], rows, strict=True))
