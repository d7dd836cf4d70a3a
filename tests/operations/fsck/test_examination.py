"""Findings in checkpoints, checksums, deletion vectors and paths, and tables that do not open."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance import clock
from delta_maintenance.errors import NotADeltaTableError, UnsupportedFeatureError
from delta_maintenance.operations.fsck.checks import presence as file_presence
from delta_maintenance.operations.fsck.examination import examine
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.protocol.delta_log import checksum_name, classic_checkpoint_name, commit_name
from tests.support.operations.fsck_findings import VECTOR_FILE, look, problems
from tests.support.rewrites.data_files import inline_vector
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import DATA, ROWS, STATS, VECTOR, SoundTable, parquet
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder


def _changed(actions: list[log.Action], name: str, **fields: Any) -> list[log.Action]:
    return [{name: {**action[name], **fields}} if name in action else action for action in actions]


def _checkpointed(change: Callable[[list[log.Action]], list[log.Action]]) -> SoundTable:
    table = SoundTable(extras=False)
    table.checkpoint(4, actions=change(table.state()))
    return table


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: [*s, log.add("more", size=3)], "has files that are not live: more"),
        (lambda s: [a for a in s if "add" not in a], "lacks live files: c and 2 others"),
        (lambda s: [*s, *[a for a in s if "c" in str(a.get("add", {}).get("path"))]], "twice: c"),
        (lambda s: _changed(s, "add", size=5), "has another size for: "),
        (lambda s: _changed(s, "add", modificationTime=5), "has another modificationTime for: "),
        (lambda s: _changed(s, "add", baseRowId=5), "has another baseRowId for: "),
        (
            lambda s: _changed(s, "add", defaultRowCommitVersion=None),
            "has another defaultRowCommitVersion for: ",
        ),
        (lambda s: [*s, log.remove("c")], "tombstones of files that were never removed: c"),
        (lambda s: _changed(s, "protocol", minWriterVersion=8), "its protocol differs"),
        (lambda s: _changed(s, "metaData", id="other"), "its metaData differs"),
        (lambda s: _changed(s, "txn", version=6), "its transaction of app differs"),
        (lambda s: [a for a in s if "txn" not in a], "lacks the transaction of app"),
        (
            lambda s: [a for a in s if (a.get("domainMetadata") or {}).get("domain") != "custom"],
            "its domain custom differs",
        ),
        (lambda s: [*s, log.domain("ghost", "1")], "its domain ghost differs"),
    ],
)
def test_differences_of_a_checkpoint_are_reported(
    change: Callable[[list[log.Action]], list[log.Action]], problem: str
) -> None:
    found = problems(_checkpointed(change))["checkpoint-differs"]

    assert any(problem in text for text in found), found


def test_a_checkpoint_may_omit_expired_actions() -> None:
    def fresh(state: list[log.Action]) -> list[log.Action]:
        return [action for action in state if not action.keys() & {"remove", "txn"}]

    table = SoundTable(
        extras=False, configuration={"delta.setTransactionRetentionDuration": "interval 1 day"}
    )
    table.checkpoint(4, actions=fresh(table.state()))

    assert not look(table).findings.counts


def test_every_checkpoint_is_compared_not_only_the_newest() -> None:
    table = SoundTable()
    table.checkpoint(1, actions=[a for a in table.state(1) if "add" not in a])

    found = look(table)

    assert [f.version for f in found.findings.first(20)] == [1]
    assert found.findings.counts == {"checkpoint-differs": 1}
    assert {n: p.kind for n, p in found.bad_checkpoints.items()} == {
        classic_checkpoint_name(1): "checkpoint-differs"
    }


@pytest.mark.conformance("CRC-03", "CRC-07", "CRC-08")
@pytest.mark.parametrize(
    ("field_name", "value"),
    [
        ("tableSizeBytes", 1),
        ("numDeletedRecordsOpt", 3),
        ("numDeletionVectorsOpt", 0),
        ("inCommitTimestampOpt", 1),
        ("setTransactions", []),
        ("domainMetadata", []),
        ("protocol", {"minReaderVersion": 1, "minWriterVersion": 2}),
        ("allFiles", [{"path": "b"}]),
        ("deletedRecordCountsHistogramOpt", {"deletedRecordCounts": [9] * 10}),
        (
            "histogramOpt",
            {"sortedBinBoundaries": [0, 9], "fileCounts": [1, 1], "totalBytes": [1, 1]},
        ),
    ],
)
def test_every_field_of_a_checksum_is_compared_with_the_log(field_name: str, value: object) -> None:
    table = SoundTable()
    stated = json.loads(table.read(checksum_name(3))) | {field_name: value}
    if field_name == "histogramOpt":
        del stated["fileSizeHistogram"]
    table.checksum(3, stated)

    (problem,) = problems(table)["checksum-differs"]

    assert (field_name if field_name != "histogramOpt" else "fileSizeHistogram") in problem


def test_a_checksum_with_a_time_that_the_table_has_not_is_found() -> None:
    table = SoundTable(extras=False, configuration={"delta.enableInCommitTimestamps": "false"})
    table.checksum(2, {"inCommitTimestampOpt": 1})

    assert problems(table) == {
        "checksum-differs": [
            "inCommitTimestampOpt is set, but the table has no in-commit timestamps"
        ]
    }


@pytest.mark.conformance("DV-07", "DV-10")
@pytest.mark.parametrize("at", range(45))
def test_every_byte_of_a_deletion_vector_file_counts(at: int) -> None:
    table = SoundTable(extras=False)
    data = bytearray(table.store.read(VECTOR_FILE))
    assert len(data) == 45
    data[at] ^= 0x10
    table.store.put(VECTOR_FILE, bytes(data))

    assert look(table).findings.counts == {"damaged-deletion-vector": 1}


@pytest.mark.conformance("DV-04", "DV-11")
def test_a_missing_vector_of_a_removed_file_is_found() -> None:
    table = SoundTable(extras=False)
    table.step(log.remove("b", dv=table.vector, deletionTimestamp=EPOCH_MS))
    table.store.delete(VECTOR_FILE)

    assert problems(table) == {
        "missing-removed-file": [f"the file of its deletion vector does not exist: {VECTOR_FILE}"]
    }
    assert VECTOR in json.dumps(table.vector)


@pytest.mark.conformance("FILE-01")
def test_files_outside_of_the_root_are_only_counted() -> None:
    table = SoundTable(extras=False)
    table.step(t := log.add("s3://elsewhere/x", size=1, baseRowId=50, defaultRowCommitVersion=5))
    table.step(table.mark(60))

    found = look(table)

    assert not found.findings.counts, t
    assert found.presence is not None
    assert found.presence.external == 1


@pytest.mark.conformance("FILE-01")
def test_paths_that_were_never_encoded_are_found() -> None:
    table = SoundTable(extras=False)
    table.store.put("100%", DATA)
    table.store.put("a%20b", DATA)
    for number, path in enumerate(("100%25", "a%20b")):
        table.step(
            log.add(
                path,
                size=len(DATA),
                stats=STATS,
                baseRowId=100 + number * ROWS,
                defaultRowCommitVersion=table.version + 1,
            ),
            table.mark(100 + (number + 1) * ROWS),
        )

    assert not look(table).findings.counts


def test_findings_before_a_gap_do_not_hide_later_ones() -> None:
    table = SoundTable(extras=False)
    table.checkpoint(3)
    table.truncate(commit_name(1), -5)
    table.step(log.txn("app", 8), log.txn("app", 9))

    assert set(problems(table)) == {"unreadable-commit", "repeated-action"}


def test_a_version_with_only_a_damaged_checkpoint_does_not_open() -> None:
    table = SoundTable(extras=False)
    table.checkpoint(2)
    table.truncate(classic_checkpoint_name(2), -9)
    table.drop(commit_name(0), commit_name(1))

    found = look(table)

    assert set(found.findings.counts) == {"unreadable-version", "unreadable-checkpoint", "log-gap"}
    assert (found.snapshot, found.history, found.presence) == (None, None, None)


def test_a_log_with_only_part_of_a_checkpoint_is_a_finding() -> None:
    table = SoundTable(extras=False)
    (first, _) = table.checkpoint(2, parts=2)
    table.drop(first, *map(commit_name, range(5)))

    assert set(look(table).findings.counts) == {"unreadable-version", "incomplete-checkpoint"}


def test_no_table_and_tables_of_the_future_are_errors() -> None:
    with pytest.raises(NotADeltaTableError):
        look(TableBuilder())
    table = SoundTable(extras=False)
    table.step(log.features("someday", writer_only=["inCommitTimestamp"]))
    with pytest.raises(UnsupportedFeatureError):
        look(table)


def test_empty_files_and_tables_without_files_are_sound() -> None:
    table = TableBuilder()
    table.commit([log.protocol(), log.metadata()])
    assert not look(table).findings.counts

    table = SoundTable(extras=False)
    empty = parquet(0)
    for _ in range(2):
        path = f"empty-{table.version}"
        table.store.put(path, empty)
        table.step(
            log.add(
                path,
                size=len(empty),
                stats='{"numRecords":0}',
                baseRowId=40,
                defaultRowCommitVersion=table.version + 1,
            )
        )
    assert not look(table).findings.counts


def test_many_findings_are_columns_and_the_worst_come_first() -> None:
    findings = Findings()
    findings.add("unknown-file", "odd", path="x")
    many = pa.chunked_array([[f"f-{number}" for number in range(100_000)]])
    findings.add_files("missing-data-file", "gone", paths=many, version=3)
    findings.add("log-gap", "gone")

    assert findings.table().num_rows == 100_002
    shown = findings.first(2)
    assert [f.kind for f in shown] == ["log-gap", *["missing-data-file"] * 2, "unknown-file"]
    assert shown[1].version == 3


def test_a_name_that_is_no_text_is_an_unknown_file(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.commit([log.protocol(), log.metadata()])
    (tmp_path / "_delta_log" / os.fsdecode(b"\xff")).touch()
    found = examine(table.open(), now=clock.now()).findings
    assert dict(found.counts) == {"unknown-file": 1}


@pytest.mark.parametrize("looked_up", [1, 2, 100])
def test_each_file_is_held_against_its_own_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: int
) -> None:
    """A disk is asked file by file, some at a time and folder by folder."""
    monkeypatch.setattr(file_presence, "_LOOKED_UP", looked_up)
    table = TableBuilder(tmp_path)
    names = [f"p={number % 3}/{number}" for number in range(9)]
    for size, name in enumerate(names):
        table.store.put(name, b"x" * size)
    wrong = {names[4]: 99, names[7]: 0}
    adds = [log.add(name, size=wrong.get(name, size)) for size, name in enumerate(names)]
    table.commit([log.protocol(), log.metadata(), *adds])
    found = examine(table.open(), now=clock.now()).findings.table()
    sizes = found.filter(pc.equal(found["kind"], "data-file-size"))
    assert sorted(sizes["path"].to_pylist()) == sorted(wrong)
    assert "the file has 4 bytes, but the log states 99" in sizes["problem"].to_pylist()


@pytest.mark.conformance("DV-10")
@pytest.mark.parametrize("deep", [False, True])
def test_inline_vectors_are_compared_with_the_number_of_rows(deep: bool) -> None:
    """They are in the log, so no file is opened for them."""
    table = SoundTable(extras=False)
    sound = {**table.live("c"), "deletionVector": inline_vector([3, ROWS - 1])}
    far = {**table.live("d%20e"), "deletionVector": inline_vector([3, ROWS])}
    table.step(log.remove("c"), {"add": sound}, log.remove("d%20e"), {"add": far})
    (found,) = look(table, deep=deep).findings.first(20)
    assert (found.kind, found.path) == ("damaged-deletion-vector", "d%20e")
    assert f"marks row {ROWS} of {ROWS}" in found.problem
