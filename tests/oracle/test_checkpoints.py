"""Delta Spark and deltalake continue from our checkpoints without the log before them."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.clock import new_id
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import CheckpointOptions, CheckpointResult
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import LogFileKind, parse_log_file_name
from tests.support.oracle.delta_spark import decode
from tests.support.oracle.delta_spark_tables import RECIPES, comparable, copy
from tests.support.oracle.delta_views import deltalake_view, our_view
from tests.support.oracle.oracle_tables import Bench
from tests.support.oracle.other_readers import DuckDb, duck, polars_rows
from tests.support.suite.play import PLAY, some

__all__ = ["duck"]

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]

SIDECARS_OF = {"classic": 0, "v2-classic": 0, "v2-json": 2, "v2-parquet": 50_000}
"""Each kind with the file actions that it puts into one sidecar; 0 keeps them in one file."""

KINDS = tuple(SIDECARS_OF)
NUMBERED = list(enumerate(RECIPES))
WRITTEN_ON = some([(name, KINDS[number % 4]) for number, name in NUMBERED], len(NUMBERED) // 5)
"""Every fifth table, with alternating kinds; `make nightly` plays all tables."""

PAIRS = [
    (name, kind)
    for number, name in NUMBERED
    for kind in KINDS
    if PLAY == "all"
    or (kind == "classic" and number % 2 == 0)
    or (number % 4 == 1 and kind == KINDS[1 + number // 4 % 3])
]
"""Every second table as a classic checkpoint, half of the others as V2, with alternating kinds.

The kind determines where the rows of a checkpoint are, and the table determines their contents.
`make nightly` plays all 120 pairs.
"""


CLASSIC = [name for name in RECIPES if not name.startswith("v2_")]
ROWS_OF = some(CLASSIC, len(CLASSIC) // 2)
"""Every second table; `make nightly` plays all tables."""


@pytest.mark.conformance(
    "CKPT-03", "CKPT-05", "CKPT-07", "CKPT-09", "CKPT-13", "CKPT-19", "CKPT-22", "CKPT-23"
)
@pytest.mark.conformance("DV-13", "PART-03", "REC-02", "REC-04", "REC-06")
@pytest.mark.conformance("LAST-05", "LAST-06", "LAST-08")
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_checkpoint_replaces_the_log_before_it(
    bench: Bench, name: str, kind: str, tmp_path: Path
) -> None:
    original = bench.table(name) if kind == "classic" else bench.v2_table(name)
    table = copy(original, tmp_path / "table")
    ours = our_view(open_table(str(table)).snapshot())
    deltalakes = deltalake_view(table)

    result = checkpoint_alone(table, kind)

    check_hint(bench, table, result, live=len(bench.view(original)["files"]))
    bench.spark.forget()
    assert bench.spark.checkpoint_files(table) == [Path(str(result.path)).name]
    assert comparable(name, bench.fresh_view(table)) == comparable(name, bench.view(original))
    assert bench.ask(name, table) == bench.answers(name)
    assert comparable(name, our_view(open_table(str(table)).snapshot())) == comparable(name, ours)
    assert _listed(name, deltalake_view(table)) == _listed(name, deltalakes)


@pytest.mark.parametrize(("name", "kind"), WRITTEN_ON)
def test_delta_spark_continues_to_write_to_it(
    bench: Bench, name: str, kind: str, tmp_path: Path
) -> None:
    original = bench.table(name) if kind == "classic" else bench.v2_table(name)
    table = copy(original, tmp_path / "table")
    result = checkpoint_alone(table, kind)
    log = table / "_delta_log"
    older = {file for file in log.rglob("*") if file.is_file()}
    rows = Counter(bench.answers(name)[0])

    bench.spark.forget()
    more = RECIPES[name].more.format(table=f"delta.`{table}`")
    bench.spark.sql(f"INSERT INTO delta.`{table}` {more}")
    bench.spark.checkpoint(table)
    for file in older - {log / "_last_checkpoint"}:
        file.unlink()

    bench.spark.forget()
    version = bench.spark.version(table)
    assert version == result.version + 1
    assert not set(bench.spark.checkpoint_files(table)) & {file.name for file in older}
    after = Counter(bench.rows(name, table))
    assert rows <= after
    assert after.total() == rows.total() + 1
    assert our_view(open_table(str(table)).snapshot())["version"] == version


@pytest.mark.conformance("CKPT-02", "LAST-09")
@pytest.mark.parametrize("name", some(list(RECIPES), len(RECIPES) // 4))
def test_a_checkpoint_of_an_older_version_carries_the_commits_after_it(
    bench: Bench, name: str, tmp_path: Path
) -> None:
    original = bench.table(name)
    table = copy(original, tmp_path / "table")
    latest = open_table(str(table)).latest_version()
    hint = table / "_delta_log" / "_last_checkpoint"
    hinted = decode(hint.read_text())["version"] if hint.exists() else -1

    result = checkpoint_alone(table, "classic", version=latest // 2, with_checksums=True)

    assert result.hint_updated == (hinted <= latest // 2)
    bench.spark.forget()
    assert bench.spark.version(table) == latest
    assert bench.spark.checkpoint_files(table) == [Path(str(result.path)).name]
    assert comparable(name, bench.fresh_view(table)) == comparable(name, bench.view(original))
    then = our_view(open_table(str(table)).snapshot(version=latest // 2))
    assert comparable(name, then) == comparable(name, bench.view(original, latest // 2))


@pytest.mark.conformance("CKPT-08", "CKPT-10", "CKPT-11", "CKPT-12", "CKPT-13", "STAT-07")
@pytest.mark.parametrize("name", ROWS_OF)
def test_the_rows_are_those_that_delta_spark_writes(
    bench: Bench, name: str, tmp_path: Path
) -> None:
    ours = copy(bench.table(name), tmp_path / "ours")
    theirs = copy(bench.table(name), tmp_path / "theirs")
    result = checkpoint_alone(ours, "classic")
    bench.spark.checkpoint(theirs)
    path = str(result.path)
    expected = _by_kind(theirs / path)
    asked = bench.view(bench.table(name))["metadata"]["configuration"]
    if "delta.checkpoint.writeStatsAsStruct" not in asked:
        # Delta Spark writes structs by default, unlike the protocol.
        for add in expected.get("add", {}).values():
            add.pop("stats_parsed", None)
            add.pop("partitionValues_parsed", None)
    assert _by_kind(ours / path) == expected


@pytest.mark.conformance("CKPT-29")
def test_a_concurrent_checkpoint_of_delta_spark_is_kept(bench: Bench, tmp_path: Path) -> None:
    table = copy(bench.table("without_a_checkpoint"), tmp_path / "table")
    opened = open_table(str(table))
    plan = checkpoint.plan(opened.snapshot(), context=RunContext.at(clock.now()))
    bench.spark.forget()
    bench.spark.checkpoint(table)
    theirs = table / "_delta_log" / f"{plan.version:020}.checkpoint.parquet"
    content = theirs.read_bytes()

    assert checkpoint.apply(opened, plan).status == "already-there"

    assert theirs.read_bytes() == content


@pytest.mark.conformance("CKPT-03", "CKPT-22", "CKPT-24", "REC-02", "REC-04")
@pytest.mark.parametrize(
    ("name", "gone", "base"),
    [
        ("appends", 3, "ours"),
        ("appends", 3, "theirs"),
        ("deletion_vectors", 101, "ours"),
        ("deletion_vectors", 101, "theirs"),
        ("partitioned", 5, "ours"),
        ("partitioned", 5, "theirs"),
        # Of such a table, sidecars of Delta Spark lack a column that ours have.
        ("statistics_as_struct", 1, "ours"),
    ],
)
def test_an_incremental_checkpoint_replaces_the_log_before_it(
    bench: Bench, duck: DuckDb, name: str, gone: int, base: str, tmp_path: Path
) -> None:
    table = copy(bench.v2_table(name), tmp_path / "table")
    bench.spark.forget()
    # Otherwise Delta Spark would write a checkpoint after one of the changes below.
    bench.spark.sql(
        f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1000')"
    )
    if base == "ours":
        _checkpoint(table, incremental="never")
    else:
        with bench.spark.setting("spark.databricks.delta.checkpoint.partSize", "2"):
            bench.spark.checkpoint(table)
    bench.spark.sql(f"DELETE FROM delta.`{table}` WHERE id = {gone}")
    more = RECIPES[name].more.format(table=f"delta.`{table}`")
    bench.spark.sql(f"INSERT INTO delta.`{table}` {more}")
    bench.spark.forget()
    expected = bench.fresh_view(table)
    rows, deltalakes = bench.rows(name, table), deltalake_view(table)
    others = _other_readers(bench, duck, table, rows=len(rows))

    result = _checkpoint(table, incremental="always")

    assert result.incremental and result.sidecars_taken_over and result.hint_updated
    opened = open_table(str(table)).snapshot().log.checkpoint
    assert opened is not None
    needed = {str(result.path), *opened.sidecar_paths, "_delta_log/_last_checkpoint"}
    needed.add(f"_delta_log/{result.version:020}.json")
    for file in (table / "_delta_log").rglob("*"):
        if file.is_file() and str(file.relative_to(table)) not in needed:
            file.unlink()
    bench.spark.forget()
    assert bench.spark.checkpoint_files(table) == [Path(str(result.path)).name]
    assert comparable(name, bench.fresh_view(table)) == comparable(name, expected)
    assert bench.rows(name, table) == rows
    assert _listed(name, deltalake_view(table)) == _listed(name, deltalakes)
    assert _other_readers(bench, duck, table, rows=len(rows)) == others


def _other_readers(bench: Bench, duck: DuckDb, table: Path, *, rows: int) -> tuple[Any, ...]:
    """The files by Delta's kernel for Java and by DuckDB, and the rows by DuckDB and by Polars."""
    files = bench.spark.kernel_files(table)
    assert len(files) == len(our_view(open_table(str(table)).snapshot())["files"])
    found = [sorted(map(str, read(table).to_pylist())) for read in (duck.rows, polars_rows)]
    assert [len(each) for each in found] == [rows, rows]
    # DuckDB takes numbers of rows from statistics in JSON alone.
    return files, {path for path, _ in duck.files(table)}, found


def _checkpoint(table: Path, *, incremental: Any) -> CheckpointResult:
    opened = open_table(str(table))
    options = CheckpointOptions(
        kind="v2-json",
        actions_per_sidecar=2,
        incremental=incremental,
        time_zone="UTC",
        engine="local",
    )
    plan = checkpoint.plan(opened.snapshot(), options, context=RunContext.at(clock.now()))
    return checkpoint.apply(opened, plan)


def checkpoint_alone(
    table: Path, kind: Any, *, version: int | None = None, with_checksums: bool = False
) -> CheckpointResult:
    """Writes our checkpoint and deletes everything that could replace it.

    Only commits of its version and later ones are kept; `with_checksums` also keeps their `.crc`.
    """
    log = table / "_delta_log"
    opened = open_table(str(table))
    version = opened.latest_version() if version is None else version
    for file in log.iterdir():
        if file.name.startswith(f"{version:020}.checkpoint"):
            file.unlink()
    older = [file for file in log.rglob("*") if file.is_file()]
    options = CheckpointOptions(
        kind=kind,
        actions_per_sidecar=SIDECARS_OF[kind],
        incremental="never",
        time_zone="UTC",
        engine="local",
    )
    context = RunContext.at(clock.now())
    plan = checkpoint.plan(opened.snapshot(version=version), options, context=context)
    result = checkpoint.apply(opened, plan, context=RunContext(new_id=new_id))
    assert (result.status, result.kind, result.version) == ("written", kind, version)
    for file in older:
        if file.exists() and not _goes_on(file, version, with_checksums, result.hint_updated):
            file.unlink()
    return result


def check_hint(bench: Bench, table: Path, result: CheckpointResult, *, live: int) -> None:
    """Delta Spark parses our `_last_checkpoint`, and what that says is true of the checkpoint."""
    assert result.hint_updated
    text = (table / "_delta_log" / "_last_checkpoint").read_text()
    hint = bench.spark.hint(text)
    top, sidecars = _files_of(table, result)
    rows = sum(_rows(file) for file in (top, *sidecars))
    assert (hint["version"], hint["size"], hint["parts"]) == (result.version, rows, False)
    assert hint["bytes"] == sum(file.stat().st_size for file in (top, *sidecars))
    assert hint["adds"] == live
    assert hint["checksum"] == ("checksum" in text)
    assert hint["v2"] in (None, [top.name, top.stat().st_size])


def _goes_on(file: Path, version: int, with_checksums: bool, hint_updated: bool) -> bool:
    if file.name == "_last_checkpoint":
        return hint_updated
    parsed = parse_log_file_name(file.name)
    kinds = {LogFileKind.COMMIT, *([LogFileKind.CHECKSUM] if with_checksums else [])}
    return parsed.kind in kinds and (parsed.version or 0) >= version


def _files_of(table: Path, result: CheckpointResult) -> tuple[Path, list[Path]]:
    return table / str(result.path), sorted((table / "_delta_log" / "_sidecars").glob("*.parquet"))


def _rows(file: Path) -> int:
    if file.suffix == ".json":
        return len(file.read_text().splitlines())
    return int(pq.read_metadata(file).num_rows)


def _listed(name: str, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not (RECIPES[name].no_statistics or RECIPES[name].struct_statistics):
        return files
    statistics = ("num_records", "null_count", "min", "max")
    return [{k: v for k, v in row.items() if k not in statistics} for row in files]


def _by_kind(file: Path) -> dict[str, dict[str, Any]]:
    """The rows of a checkpoint file by kind and key, in one form whatever the Parquet types."""
    kinds: dict[str, dict[str, Any]] = {}
    for row in pq.read_table(file, coerce_int96_timestamp_unit="us").to_pylist(
        maps_as_pydicts="strict"
    ):
        [(kind, fields)] = [(kind, value) for kind, value in row.items() if value is not None]
        if "partitionValues" in fields:
            # Delta Spark loses the null entries of removes, so only in adds they tell something.
            values = (fields["partitionValues"] or {}).items()
            fields["partitionValues"] = {
                name: str(value) for name, value in values if kind == "add" or value is not None
            }
        plain = _plain(fields)
        key = str((plain.get("path"), plain.get("deletionVector"), plain.get("appId")))
        assert key not in kinds.setdefault(kind, {})
        kinds[kind][key] = plain
    return kinds


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _plain(decode(field) if name in ("stats", "schemaString") else field)
            for name, field in value.items()
            if field is not None
        }
    if isinstance(value, list):
        return sorted(value) if all(isinstance(item, str) for item in value) else value
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value
