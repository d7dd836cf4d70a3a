"""Bins whose row groups are copied: their reports, and deletions of other writers meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.operations.rewriting.commits import SUMS_TAG
from delta_maintenance.table.data import rewrite
from delta_maintenance.table.read import Table
from tests.support.logs.checkpointing import on_disk
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW, Rewritten, numbers, without
from tests.support.rewrites.table_rows import actions_of, latest, live_adds


@pytest.fixture(autouse=True)
def _small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1)


def copied(result: Any) -> dict[str, tuple[str, bool]]:
    """The fate of the bin of each partition, and whether its row groups were copied."""
    return {report.partition["p"]: (report.fate, report.copied) for report in result.bins}


@pytest.mark.conformance("RW-25", "RW-46")
def test_the_report_says_that_row_groups_were_copied_and_has_no_digest_of_rows() -> None:
    made = Rewritten(tracked=False)
    before = made.rows()
    table, options = Table(made.store), OptimizeOptions(engine="local")
    plan = optimize.plan(table.snapshot(), options, context=RunContext.at(NOW))
    assert plan.bytes_to_copy == plan.bytes > 0
    result = made.optimize()
    assert copied(result) == dict.fromkeys("xyz", ("committed", True))
    assert made.rows() == before
    assert len(live_adds(made.store)) == 3
    assert {report.row_sums for report in result.bins} == {None}
    [info] = [
        a["commitInfo"] for a in actions_of(made.store, latest(made.store)) if "commitInfo" in a
    ]
    assert SUMS_TAG not in (info.get("tags") or {})
    assert made.optimize().status == "nothing-to-do"


@pytest.mark.conformance("RW-46")
@pytest.mark.parametrize(
    ("by_copy", "proof"), [("", "rows"), ("y", "rows"), ("xz", "rows"), ("", "counts")]
)
def test_a_commit_has_a_digest_of_its_rows_only_if_all_of_them_were_compared(
    by_copy: str, proof: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rewrite.copied_bin

    def copied_bin(store: Any, work: Any, *given: Any, **options: Any) -> Any:
        if dict(work.partition_values)["p"] not in by_copy:
            return None
        return original(store, work, *given, **options)

    monkeypatch.setattr(rewrite, "copied_bin", copied_bin)
    made = Rewritten(tracked=False)
    found = copied(made.optimize(proof=proof))
    assert found == {each: ("committed", each in by_copy) for each in "xyz"}
    infos = [
        action["commitInfo"]
        for action in actions_of(made.store, latest(made.store))
        if "commitInfo" in action
    ]
    assert [SUMS_TAG in (info.get("tags") or {}) for info in infos] == [
        not by_copy and proof == "rows"
    ]


@pytest.mark.conformance("RW-25")
def test_copied_rows_of_tables_with_row_tracking_keep_their_ids() -> None:
    made = Rewritten()
    before = made.rows()
    assert copied(made.optimize()) == dict.fromkeys("xyz", ("committed", True))
    assert made.rows() == before
    # The copies contain their row IDs, and are copied as a whole.
    made.table.continue_row_ids()
    made.table.append(*(numbers(900 + 10 * at) for at in range(4)), partitionValues={"p": "x"})
    before = made.rows()
    assert copied(made.optimize()) == {"x": ("committed", True)}
    assert made.rows() == before


@pytest.mark.conformance("RW-25", "RW-29", "RW-30")
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_rows_that_others_delete_meanwhile_are_deleted_from_the_copy(
    vectors: bool, tracked: bool
) -> None:
    made = Rewritten(tracked=tracked, vectors=vectors)
    before = made.rows()
    made.store.races = [lambda: made.table.delete(made.paths["y"][2], [1, 3])]
    made.store.prefix = "_delta_log/"
    result = made.optimize()
    # Without deletion vectors, the copy is decoded and written once more.
    expected = ("remapped", True) if vectors else ("written-again", False)
    assert copied(result) == {"x": ("committed", True), "y": expected, "z": ("committed", True)}
    assert made.rows() == without(before, 121, 123)
    [report] = [each for each in result.bins if each.partition["p"] == "y"]
    assert (report.row_sums is None) == vectors


@pytest.mark.conformance("RW-25", "RW-29", "RW-30")
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_rows_are_found_in_a_file_whose_small_sources_were_moved_to_its_end(
    monkeypatch: pytest.MonkeyPatch, vectors: bool, tracked: bool
) -> None:
    made = Rewritten(tracked=tracked, vectors=vectors, partitions="x")
    big = [numbers(1000 * at, 400) for at in (1, 2)]
    made.paths["y"] = made.table.append(
        numbers(500), big[0], numbers(600), big[1], numbers(700), partitionValues={"p": "y"}
    )
    paths = made.paths["y"]
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 3 * made.store.stat(paths[0]).size)
    before = made.rows()
    # Each race meets a new file: the first deletion is carried over before the second happens.
    made.store.races = [
        lambda: made.table.delete(paths[1], [5, 6]),
        lambda: made.table.delete(paths[2], [1]),
    ]
    made.store.prefix = "_delta_log/"
    result = made.optimize(target_bytes=1 << 20)
    assert copied(result)["y"] == (("remapped", True) if vectors else ("written-again", False))
    assert made.rows() == without(before, 1005, 1006, 601)


@pytest.mark.conformance("RW-25")
def test_deltalake_finds_rows_of_copied_row_groups_by_their_page_indexes(tmp_path: Path) -> None:
    made = DataTable(field("a", "long"), field("b", "string"))
    writing = {"row_group_size": 2000, "write_page_index": True, "max_rows_per_page": 100}
    made.append(*(numbers(first, 5000) for first in (0, 5000, 10_000)), writing=writing)
    made.store.now_ms = lambda: epoch_millis(NOW)
    table = Table(made.store)
    planned = optimize.plan(
        table.snapshot(), OptimizeOptions(workers=1), context=RunContext.at(NOW)
    )
    [report] = optimize.apply(table, planned, context=RunContext.at(NOW)).bins
    assert (report.fate, report.copied, report.num_sources) == ("committed", True, 3)
    for path in live_adds(made.store):
        (tmp_path / path).write_bytes(made.store.read(path))
    opened = deltalake.DeltaTable(on_disk(made.store, tmp_path))
    query = deltalake.QueryBuilder().register("t", opened)
    for condition, expected in (
        ("a >= 0", range(15_000)),
        ("a BETWEEN 3990 AND 6010", range(3990, 6011)),
        ("b = 'text 14999'", [14_999]),
    ):
        found = pa.table(query.execute(f"SELECT a, b FROM t WHERE {condition}").read_all())
        assert sorted(found["a"].to_pylist()) == list(expected)
        assert all(f"text {row['a']}" == row["b"] for row in found.to_pylist())


def test_a_property_that_demands_another_codec_or_version_of_pages_is_obeyed() -> None:
    for name, value in (
        ("delta.parquet.compression.codec", "gzip"),
        ("delta.parquet.format.version", "2.12.0"),
    ):
        made = Rewritten(tracked=False)
        actions = actions_of(made.store, 0)
        [metadata] = [each["metaData"] for each in actions if "metaData" in each]
        metadata["configuration"][name] = value
        made.table.builder.commit([{"metaData": metadata}])
        assert copied(made.optimize()) == dict.fromkeys("xyz", ("committed", False))


def test_bounds_of_copied_files_are_exact() -> None:
    made = Rewritten(tracked=False, partitions="x")
    made.optimize()
    [add] = live_adds(made.store).values()
    assert json.loads(add["stats"]) == {
        "numRecords": 16,
        "minValues": {"a": 0, "b": "text 0"},
        "maxValues": {"a": 33, "b": "text 33"},
        "nullCount": {"a": 0, "b": 0},
        "tightBounds": True,
    }


@pytest.mark.conformance("RW-25", "RW-40")
def test_a_source_whose_pages_cannot_be_decoded_is_named_and_the_others_are_merged() -> None:
    made = Rewritten(tracked=False)
    path = made.paths["y"][0]
    data = bytearray(made.store.read(path))
    # The length of the first text: headers of pages and the footer stay as they are.
    at = data.index(b"text ")
    data[at - 4 : at] = b"\xff\xff\xff\x7f"
    made.store.put(path, bytes(data))
    result = made.optimize()
    assert result.status == "failed" and result.files_before == 11
    assert [file.path for file in result.refused] == [path] and result.refused[0].damaged
    assert {fate for fate, _ in copied(result).values()} == {"committed"}


@pytest.mark.conformance("RW-25")
def test_a_name_of_a_writer_that_is_no_text_is_no_error() -> None:
    made = Rewritten(tracked=False)
    for path in made.paths["x"]:
        data = made.store.read(path)
        assert data.count(b"parquet-cpp") == 1
        made.store.put(path, data.replace(b"parquet-cpp", b"parquet-\xff\xff\xff"))
    before = made.rows()
    assert made.optimize().status == "rewritten"
    assert made.rows() == before
