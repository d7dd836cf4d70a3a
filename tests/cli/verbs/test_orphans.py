"""`orphans`: the report on the terminal, as JSON and as a page; nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

MARKUP = "<b>&amp;[red]"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder with a known table, one that nobody names, and the source of a clone."""
    lake = tmp_path / "lake"
    source = lake / "source"
    for path, file in (("known", f"file://{source}/part-1"), (MARKUP, "p"), ("source", "part-1")):
        builder = TableBuilder(str(lake / path))
        builder.commit([protocol(), metadata()])
        builder.commit([add(file)])
    (tmp_path / "policy.yaml").write_text(
        f"version: 1\ntables: [{{uri: {lake}/known, name: known}}]"
    )
    return lake


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def test_the_report_names_tables_for_people(cli: Cli, lake: Path) -> None:
    before = contents(lake)
    done = cli("orphans", lake.parent / "policy.yaml", "--under", lake)
    assert done.status == 0
    name, *facts = done.out.splitlines()
    assert name == f"{lake}/{MARKUP}"
    assert all(len(line) <= 80 for line in facts)
    assert "in 2 files, version 1" in facts[0]
    assert "days ago" in facts[1]
    assert f"{lake}/source is no orphan: known uses files of it" in done.err
    assert "1 table that nobody names" in done.err
    assert contents(lake) == before


def test_the_report_is_a_document(cli: Cli, lake: Path) -> None:
    done = cli("orphans", lake.parent / "policy.yaml", "--under", lake, "--json")
    [orphan] = done.document["orphans"]
    assert orphan["uri"] == f"{lake}/{MARKUP}"
    assert (orphan["files"], orphan["version"], orphan["problem"]) == (2, 1, None)
    assert done.document["complete"] is True
    assert done.document["known"] == 1
    assert done.document["referenced"] == [{"uri": f"{lake}/source", "by": ["known"]}]


def test_the_report_is_a_page_that_loads_nothing(cli: Cli, lake: Path) -> None:
    page = lake.parent / "page.html"
    assert cli("orphans", lake.parent / "policy.yaml", "--under", lake, "--html", page).status == 0
    text = page.read_text()
    assert "&lt;b&gt;&amp;amp;[red]" in text and MARKUP not in text
    assert "known" in text and "src=" not in text and "href=" not in text


def test_a_page_that_cannot_be_written_is_refused(cli: Cli, lake: Path) -> None:
    done = cli("orphans", lake.parent / "policy.yaml", "--under", lake, "--html", lake / "x" / "y")
    assert done.status == 2
    assert "the page cannot be written" in done.err


def test_a_search_that_is_not_complete_fails_and_says_so(cli: Cli, lake: Path) -> None:
    for file in (lake / "known" / "_delta_log").iterdir():
        file.write_bytes(b"{")
    done = cli("orphans", lake.parent / "policy.yaml", "--under", lake)
    assert done.status == 5
    assert "the search is not complete" in done.err
    assert "known:" in done.err
    assert len(done.out.split(str(lake))) == 3
