"""Erasure of rows that shallow clones still have, in files of their own and of their source."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.operations import checkpoint, erasure_report, vacuum
from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.erasure_report import (
    ErasureReportOptions,
    ErasureReportPlan,
    ErasureReportResult,
)
from delta_maintenance.operations.holds import Holders
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.storage.local import LocalStore

VERIFY = Path(__file__).parents[3] / "examples" / "verify_erasure_report.py"


@pytest.fixture(params=[None, ["country"]], ids=["flat", "partitioned"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table with the IDs 0 to 19."""
    root = tmp_path / "source"
    for first in (0, 10):
        ids = list(range(first, first + 10))
        country = ["DE" if each % 2 else "FR" for each in ids]
        rows = pa.table({"id": pa.array(ids, pa.int64()), "country": country})
        deltalake.write_deltalake(root, rows, mode="append", partition_by=request.param)
    return root


def cloned(source: Path, root: Path) -> Path:
    """A shallow clone: the log of a table, with absolute paths."""
    (root / "_delta_log").mkdir(parents=True)
    for commit in sorted((source / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            for name in {"add", "remove"} & set(action):
                action[name]["path"] = f"{source}/{action[name]['path']}"
        (root / "_delta_log" / commit.name).write_text("\n".join(map(json.dumps, actions)) + "\n")
    return root


def planned(root: Path, where: str, *clones: Path, **options: Any) -> ErasureReportPlan:
    given = {"clones": tuple(map(str, clones)), **options}
    return erasure_report.plan(
        open_table(str(root)).snapshot(), ErasureReportOptions(where=where, **given)
    )


def report(
    root: Path, where: str, *clones: Path, context: RunContext | None = None, **options: Any
) -> ErasureReportResult:
    plan = planned(root, where, *clones, **options)
    return erasure_report.apply(open_table(str(root)), plan, context or RunContext())


def places(result: ErasureReportResult) -> dict[str, int]:
    """The rows of each place."""
    return {each.place: each.rows for each in result.places if each.place != "log"}


def vacuumed(root: Path, *clones: Path) -> None:
    """Deletes every file that nothing needs."""
    options = VacuumOptions(
        retention=timedelta(),
        allow_short_retention=True,
        no_other_writers=True,
        clones=tuple(map(str, clones)),
    )
    context = RunContext(started=clock.now() + timedelta(minutes=1))
    table = open_table(str(root))
    vacuum.apply(table, vacuum.plan(table.snapshot(), options, context), context)


def test_a_clone_holds_rows_that_its_source_has_lost(source: Path, tmp_path: Path) -> None:
    clone = cloned(source, tmp_path / "clone")
    deltalake.DeltaTable(source).delete("id IN (7, 12)")
    (alone,) = report(source, "id IN (7, 12)").places
    assert alone.place == "removed" and alone.last_end is not None
    for options in ({"clones": (str(clone),)}, {"holders": Holders(clones=(str(clone),))}):
        result = report(source, "id IN (7, 12)", **options)
        assert places(result) == {"held": 2} and result.places[0].last_end is None
        assert {each.ends_by for each in result.found} == {f"held by clone {clone}, then a vacuum"}
    # The vacuum keeps these files for the clone, whatever the source knows of them.
    vacuumed(source, clone)
    assert places(report(source, "id IN (7, 12)", clone)) == {"held": 2}
    vacuumed(source)
    assert report(source, "id IN (7, 12)").status == "erased"


def test_a_file_that_only_the_clone_knows_has_its_partition_values(tmp_path: Path) -> None:
    source = tmp_path / "source"
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "country": ["DE", "DE"]})
    deltalake.write_deltalake(source, rows, partition_by=["country"])
    (live,) = (source / "country=DE").glob("*.parquet")
    # As with column mapping, the name of the folder says nothing.
    (source / "4f").mkdir()
    live.rename(source / "4f" / live.name)
    log = source / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace(f"country=DE/{live.name}", f"4f/{live.name}"))
    clone = cloned(source, tmp_path / "clone")
    lines = [line for line in log.read_text().splitlines() if '{"add":' not in line]
    log.write_text("\n".join(lines) + "\n")
    unknown = report(source, "country = 'DE'")
    assert unknown.status == "uncertain" and "country is unknown" in unknown.not_examined[0]
    assert places(report(source, "country = 'DE'", clone)) == {"held": 2}


@pytest.mark.process
def test_the_own_files_of_a_clone_are_searched(source: Path, tmp_path: Path) -> None:
    clone = cloned(source, tmp_path / "clone")
    deltalake.DeltaTable(source).delete("id = 7")
    (gone,) = (Path(each.path) for each in report(source, "id = 7").found)
    (clone / gone).parent.mkdir(exist_ok=True)
    shutil.copy(source / gone, clone / gone)
    plan = planned(source, "id = 7", clone)
    assert plan.files == planned(source, "id = 7").files + 1
    path = str(tmp_path / "report.parquet")
    result = report(source, "id = 7", clone, context=RunContext(report=path))
    assert places(result) == {"held": 1, "unreferenced": 1}
    assert {(each.place, each.clone) for each in result.found} == {
        ("held", None),
        ("unreferenced", str(clone)),
    }
    assert result.digest != report(source, "id = 7").digest
    assert pq.read_table(path)["clone"].drop_null().to_pylist() == [str(clone)]
    said = subprocess.run(
        [sys.executable, VERIFY, path, str(source), "id = 7"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    last = said.stdout.splitlines()[-1]
    assert last == f"2 rows in {result.files_read} files, as reported"


@pytest.mark.parametrize("damage", ["gone", "damaged", "history", "no folder"])
def test_a_clone_that_cannot_be_read_may_have_the_rows(
    source: Path, tmp_path: Path, damage: str
) -> None:
    clone = cloned(source, tmp_path / "clone")
    deltalake.DeltaTable(source).delete("id = 7")
    if damage == "gone":
        shutil.rmtree(clone)
    elif damage == "history":
        # The latest version can be opened, and what it referred to before is unknown.
        table = open_table(str(clone))
        checkpoint.apply(table, checkpoint.plan(table.snapshot(), CheckpointOptions()))
        (clone / "_delta_log" / f"{0:020}.json").write_text("{")
    elif damage == "damaged":
        (clone / "_delta_log" / f"{0:020}.json").write_text("{")
    else:
        shutil.rmtree(clone)
        clone.write_text("no folder")
    assert report(source, "id = 4711").status == "erased"
    result = report(source, "id = 4711", clone)
    assert result.status == "uncertain"
    assert f"the clone {clone} cannot be read" in result.not_examined[0]
    (held,) = report(source, "id = 7", clone).places
    # A vacuum of the source would be refused, so that no file of it has an end.
    assert (held.place, held.last_end) == ("held", None)
    assert any(f"the clone {clone}" in note for note in planned(source, "id = 7", clone).notes)


def test_a_clone_without_a_column_of_the_condition_is_not_called_erased(
    source: Path, tmp_path: Path
) -> None:
    clone = cloned(source, tmp_path / "clone")
    for commit in (clone / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace(r"\"id\"", r"\"other\""))
    result = report(source, "id = 4711", clone)
    assert result.status == "uncertain"
    assert result.not_examined[0].startswith(f"clone {clone}: ")
    assert "there is no column id" in result.not_examined[0]


def test_clones_in_a_cycle_are_searched_once(source: Path, tmp_path: Path) -> None:
    clone = cloned(source, tmp_path / "clone")
    own = next(path for path in source.rglob("*.parquet"))
    shutil.copy(own, clone / "own.parquet")
    # The source has a file of its clone, which the clone does not know.
    values = {"country": own.parent.name.removeprefix("country=")} if own.parent != source else {}
    add = {
        "path": f"{clone}/own.parquet",
        "partitionValues": values,
        "size": own.stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
    }
    (source / "_delta_log" / f"{2:020}.json").write_text(json.dumps({"add": add}) + "\n")
    alone = report(source, "id = 4711")
    assert alone.status == "uncertain" and f"{clone}/own.parquet" in alone.not_examined[0]
    assert report(source, "id = 4711", clone, clone, source).status == "erased"
    result = report(source, "id >= 0", clone, clone, source)
    (found,) = [each for each in result.found if each.clone is not None and each.place != "log"]
    assert (found.path, found.place, found.ends) == ("own.parquet", "held", None)
    assert found.ends_by == f"held by table {source}, then a vacuum"
    rows = pq.read_metadata(own).num_rows
    assert places(result) == {"live": 20, "held": rows}
    assert result.files_read == len([*source.rglob("*.parquet")]) + 1


def test_a_clone_of_another_table_of_the_same_name_leaves_it_uncertain(
    source: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "source"
    shutil.copytree(source, other)
    clone = cloned(other, tmp_path / "other" / "clone")
    deltalake.DeltaTable(source).delete("id = 7")
    result = report(source, "id = 7", clone)
    # The names of the files are the same, and the clone may know the table by another address.
    assert places(result) == {"held": 1}
    assert result.not_examined and str(other) in result.not_examined[0]
    absent = report(source, "id = 4711", clone)
    assert absent.status == "uncertain"


@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_that_is_replaced_meanwhile_is_not_called_erased(
    source: Path, tmp_path: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = next(path for path in source.rglob("*.parquet"))
    fresh = tmp_path / "fresh"
    rows = pq.read_table(victim, partitioning=None)
    column = pa.array([4711] * rows.num_rows, pa.int64())
    pq.write_table(rows.set_column(0, "id", column), fresh)
    opened_by_store = LocalStore.open

    def opened(store: LocalStore, path: str) -> BinaryIO:
        found = opened_by_store(store, path)
        if source / path == victim and fresh.exists():
            if in_place:
                victim.write_bytes(fresh.read_bytes())
                fresh.unlink()
            else:
                os.replace(fresh, victim)
        return found

    monkeypatch.setattr(LocalStore, "open", opened)
    before = pq.read_metadata(victim).num_rows
    path = str(tmp_path / "report.parquet")
    result = report(source, "id = 4711", context=RunContext(report=path))
    assert result.status in ("remains", "uncertain")
    assert any("replaced during the examination" in each for each in result.not_examined)
    (row,) = [
        each
        for each in pq.read_table(path).to_pylist()
        if each["path"] == str(victim.relative_to(source))
    ]
    # The checksum and the rows are those of one content.
    assert row["rows"] == (before if in_place else 0)
