"""`files`: JSON lines with exactly the promised keys, each live file once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables.actions import OMIT, add, deletion_vector, features, metadata, remove
from tests.support.tables.table_builder import TableBuilder

KEYS = [
    "path",
    "dv",
    "size",
    "partition_values",
    "num_records",
    "base_row_id",
    "default_row_commit_version",
]


def test_a_line_has_exactly_the_documented_keys(cli: Any, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t")
    builder.commit(
        [
            features("deletionVectors", writer_only=["rowTracking", "domainMetadata"]),
            metadata(partitioned_by=["d", "n"]),
            add(
                "d=%20x/a",
                size=10,
                dv=deletion_vector("ab^-aqEH.-t@S}K{vb[*k^"),
                partitionValues={"d": "Größe", "n": None},
                stats='{"numRecords":5}',
                baseRowId=100,
                defaultRowCommitVersion=0,
            ),
            add("b", size=20, partitionValues={"d": "1", "n": "2"}),
        ]
    )
    outcome = cli("files", builder.store.root)
    assert outcome.status == 0 and outcome.err == ""
    assert outcome.out.isascii()
    rows = {row["path"]: row for row in outcome.lines}
    assert list(rows["b"]) == KEYS
    assert rows["d=%20x/a"] == {
        "path": "d=%20x/a",
        "dv": "uab^-aqEH.-t@S}K{vb[*k^@1",
        "size": 10,
        "partition_values": {"d": "Größe", "n": None},
        "num_records": 5,
        "base_row_id": 100,
        "default_row_commit_version": 0,
    }
    assert rows["b"] == {
        "path": "b",
        "dv": None,
        "size": 20,
        "partition_values": {"d": "1", "n": "2"},
        "num_records": None,
        "base_row_id": None,
        "default_row_commit_version": None,
    }


def test_partition_values_are_null_where_the_log_has_none(cli: Any, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t")
    builder.commit([features(), metadata(), add("a", partitionValues=OMIT)])
    assert cli("files", builder.store.root).lines[0]["partition_values"] is None


def test_json_changes_nothing(cli: Any, table: str) -> None:
    assert cli("files", table).out == cli("files", table, "--json").out


def test_a_table_without_files_prints_nothing(cli: Any, builder: TableBuilder) -> None:
    builder.commit([remove("a"), remove("b"), remove("c")])
    outcome = cli("files", builder.store.root)
    assert (outcome.status, outcome.out) == (0, "")


def test_an_older_version_lists_its_own_files(cli: Any, builder: TableBuilder) -> None:
    builder.commit([remove("a")])
    paths = [row["path"] for row in cli("files", builder.store.root, "--version", 1).lines]
    assert sorted(paths) == ["a", "b"]


def test_more_files_than_one_batch_are_all_listed(cli: Any, builder: TableBuilder) -> None:
    builder.commit([add(f"f{number}") for number in range(10_000)])
    builder.checkpoint()
    rows = cli("files", builder.store.root).lines
    assert len({row["path"] for row in rows}) == len(rows) == 10_003


def test_damage_in_the_middle_neither_repeats_nor_loses_files(cli: Any, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t")
    protocol = features("v2Checkpoint", "deletionVectors")
    builder.commit([protocol, metadata(partitioned_by=["d"])])
    builder.commit([add(f"f{number}", partitionValues={"d": f"{number}"}) for number in range(9)])
    builder.commit([remove("f1"), add("f1", dv=deletion_vector())])
    *_, last_sidecar = builder.v2_checkpoint(2, sidecars=3)
    builder.commit([remove("f0"), add("g")])
    sound = cli("files", builder.store.root)
    # The footer stays whole, so the damage shows only when the pages are read.
    builder.garbage(last_sidecar, at=4, size=400)

    damaged = cli("files", builder.store.root)

    assert damaged.status == 0
    assert f"warning: {builder.store.root}: skipped _delta_log/" in damaged.err
    assert sorted(damaged.out.splitlines()) == sorted(sound.out.splitlines())
    assert len(damaged.lines) == 9


def test_damage_without_a_fallback_is_status_5(cli: Any, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t")
    builder.commit([features(), metadata(), *(add(f"f{number}") for number in range(9))])
    builder.garbage(builder.checkpoint()[0], at=4, size=400)
    builder.commit([add("g")])
    builder.drop("00000000000000000000.json")
    outcome = cli("files", builder.store.root)
    assert outcome.status == 5
    assert "00000000000000000000.checkpoint.parquet" in outcome.err


@pytest.mark.parametrize(
    "name",
    [
        "dat-deletion_vectors",
        "dat-multi_partitioned",
        "dat-stats_as_struct",
        "deltars-checkpoint-v2-table",
        "deltars-delta-0.8.0-null-partition",
        "golden-time-travel-partition-changes-a",
        "kernelrs-compacted-log-files-table",
    ],
)
def test_real_tables_list_the_expected_files_at_every_version(
    cli: Any, corpus: Path, name: str
) -> None:
    expected = json.loads((corpus / "expected" / f"{name}.json").read_text())
    for number, version in expected["versions"].items():
        if version["status"] != "ok":
            continue
        rows = cli("files", corpus / name, "--version", number).lines
        assert all(list(row) == KEYS for row in rows)
        found = {(row["path"], row["dv"]): row for row in rows}
        wanted = {
            (row["path"], row["dv"]["id"] if row.get("dv") else None): row
            for row in version["files"]
        }
        assert len(rows) == version["num_files"]
        assert found.keys() == wanted.keys(), f"{name} version {number}"
        for key, row in wanted.items():
            assert found[key]["size"] == row["size"]
            assert found[key]["partition_values"] == row.get("partition_values", {})
            assert found[key]["base_row_id"] == row.get("baseRowId")


def test_a_terminal_shows_size_rows_and_the_unbroken_path(
    cli: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = cli("files", table)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    head, *rows = cli("files", table).out.splitlines()
    assert head.split() == ["size", "rows", "path"]
    assert sorted(row.split()[-1] for row in rows) == ["a", "b", "c"]
    assert {row.index(row.split()[-1]) for row in rows} == {head.index("path")}
    assert cli("files", table, "--json").lines == piped.lines
