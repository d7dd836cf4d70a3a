"""Checkpoints of real tables, by every kind of ours, read back by us and by deltalake."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from delta_maintenance import open_table
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.actions import Protocol
from delta_maintenance.protocol.features import FeatureKind, find_feature, supported_features
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Snapshot
from tests.support.logs.checkpointing import (
    LOG,
    SHAPES,
    as_checkpointed,
    files_of,
    only,
    state_of,
    write,
)
from tests.support.tables.actions import Action, commit_info, features
from tests.support.tables.corpus_tables import TABLES
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

BEFORE_ALL_TABLES = datetime(2000, 1, 1, tzinfo=UTC)
"""By this clock every commit lies in the future, and so no tombstone expires."""


def log_of(folder: Path) -> MemoryStore:
    """The log of a table, in memory."""
    store = MemoryStore(now_ms=lambda: EPOCH_MS)
    log = folder / LOG
    for path in [*log.glob("*"), *log.glob("_sidecars/*")]:
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())
    return store


def supporting_v2(protocol: Protocol) -> Action:
    """The protocol with v2Checkpoint; what a legacy version implied is listed by name."""
    supported = supported_features(protocol) | {"v2Checkpoint"}
    for_readers = [
        name
        for name in sorted(supported)
        if (feature := find_feature(name)) and feature.kind is FeatureKind.READER_WRITER
    ]
    return features(*for_readers, writer_only=sorted(supported - set(for_readers)))


def with_one_more_commit(folder: Path, kind: str) -> tuple[TableBuilder, Snapshot]:
    """A copy of the log whose newest version has no checkpoint yet, and may have one of `kind`."""
    table = TableBuilder(log_of(folder))
    snapshot = table.open().snapshot()
    line = commit_info() if kind == "classic" else supporting_v2(snapshot.protocol)
    table.commit([line], version=snapshot.version + 1)
    return table, table.open().snapshot()


def cases() -> Iterator[Any]:
    """Every table with V1, and with V2 in one of its shapes, all of them in turn."""
    for number, name in enumerate(TABLES):
        for shape in (SHAPES[0], SHAPES[1 + number % (len(SHAPES) - 1)]):
            yield pytest.param(name, *shape, id=f"{name}-{shape[0]}-{shape[1]}")


def comparable(rows: pa.Table) -> list[Any]:
    return sorted(map(repr, rows.to_pylist()))


def deltalake_files(root: Path) -> dict[str, dict[str, Any]] | None:
    """The live files with partition values and statistics as deltalake sees them, if it does."""
    try:
        adds = pa.table(DeltaTable(str(root)).get_add_actions(flatten=True))
    except (DeltaError, NotImplementedError):
        return None
    # It passes over statistics in structs of old writers, which it sees in our text.
    return {
        row["path"]: {name: value for name, value in row.items() if value is not None}
        for row in adds.to_pylist()
    }


def deltalake_rows(root: Path) -> list[Any] | None:
    """The rows of the table as deltalake reads them, if it does."""
    try:
        return comparable(DeltaTable(str(root)).to_pyarrow_table())
    except Exception:
        # Whatever hinders it hinders it before the checkpoint, too.
        return None


@pytest.mark.conformance(
    "CKPT-03", "CKPT-04", "CKPT-07", "CKPT-11", "CKPT-19", "FILE-02", "PART-03", "STAT-05",
    "DOM-02", "CDC-01", "CM-03", "SCHEMA-02", "LOG-12", "CAT-05",
)  # fmt: skip
@pytest.mark.parametrize(("name", "kind", "per_sidecar"), [*cases()])
def test_a_real_table_is_the_same_from_its_checkpoint_alone(
    corpus: Path,
    tmp_path: Path,
    count_cases: Callable[[str, int], None],
    name: str,
    kind: str,
    per_sidecar: int,
) -> None:
    try:
        table, before = with_one_more_commit(corpus / name, kind)
    except DeltaMaintenanceError:
        assert json.loads((corpus / "expected" / f"{name}.json").read_text())["expected"] == "error"
        return
    original = files_of(table.store)
    try:
        result = write(table.open(), kind, per_sidecar, now=BEFORE_ALL_TABLES)
    except (CorruptTableError, RefusedError, UnsupportedFeatureError) as refusal:
        assert name in REFUSED, str(refusal)
        assert REFUSED[name] in str(refusal)
        assert files_of(table.store) == original
        return
    assert name not in REFUSED and result.status == "written" and result.path is not None
    assert original.items() <= (files_of(table.store) | hint_of(original)).items()
    alone = only(table.store, result.path, before.version)
    after = alone.snapshot()
    assert after.log.segment.base_version == before.version
    expected, found = as_checkpointed(state_of(before)), state_of(after)
    for key, value in expected.live.items():
        if not before.properties.write_stats_as_json:
            value.pop("stats", None)
        if "stats" not in value:
            # Computed of a struct; `num_records` below and deltalake look at what it says.
            found.live[key].pop("stats", None)
    assert found == expected
    lost = [] if keeps_statistics(before) else ["num_records"]
    assert comparable(after.live_files().drop(lost)) == comparable(before.live_files().drop(lost))
    tombstones = [each.tombstones().drop(["num_records"]) for each in (after, before)]
    assert comparable(tombstones[0]) == comparable(tombstones[1])
    # Older versions are none of its business.
    for version in {0, max(0, before.version - 1)}:
        then = log_of(corpus / name)
        try:
            old = TableBuilder(then).open().snapshot(version=version)
        except DeltaMaintenanceError:
            continue
        assert state_of(table.open().snapshot(version=version)) == state_of(old)
    if keeps_statistics(before):
        files, rows = check_deltalake(
            corpus / name, tmp_path, original, files_of(alone.store), rows=kind == "classic"
        )
        count_cases("checkpoints of which deltalake sees the same files", files)
        count_cases("checkpoints from which deltalake reads the same rows", rows)
    count_cases("checkpoints of real tables", 1)


def keeps_statistics(snapshot: Snapshot) -> bool:
    properties = snapshot.properties
    return properties.write_stats_as_json or properties.write_stats_as_struct


def hint_of(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if path == f"{LOG}/_last_checkpoint"}


def check_deltalake(
    folder: Path, scratch: Path, before: dict[str, bytes], after: dict[str, bytes], *, rows: bool
) -> tuple[bool, bool]:
    """Whether deltalake could compare files, and rows."""
    answers = []
    for number, files in enumerate((before, after)):
        root = scratch / str(number)
        shutil.copytree(folder, root, ignore=shutil.ignore_patterns(LOG))
        for path, data in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        answers.append((deltalake_files(root), deltalake_rows(root) if rows else None))
    (files_before, rows_before), (files_after, rows_after) = answers
    if files_before is not None:
        assert files_after is not None and files_after.keys() == files_before.keys()
        for path, row in files_before.items():
            assert row.items() <= files_after[path].items()
    assert rows_before is None or rows_after == rows_before
    return files_before is not None, rows_before is not None


SPELLINGS = "two different paths"
REFUSED = {
    "deltars-table_with_liquid_clustering": "liquid",
    "golden-canonicalized-paths-special-a": SPELLINGS,
    "golden-canonicalized-paths-special-b": SPELLINGS,
    "kernel-catalog-owned-preview": "catalog-managed",
    "kernelrs-uc-catalog_managed_0": "catalog-managed",
    # Put together by hand: the checksum, or the checkpoint, states what the commits do not.
    "kernelrs-crc-full": "tableSizeBytes",
    "kernelrs-parquet_row_group_skipping": "another metadata",
    "kernelrs-golden-canonicalized-paths-special-a": SPELLINGS,
    "kernelrs-golden-canonicalized-paths-special-b": SPELLINGS,
}
"""Tables that must not be checkpointed, and a word of the reason."""


@pytest.mark.conformance("LOG-13")
def test_no_checkpoint_of_a_real_table_names_its_root(corpus: Path, tmp_path: Path) -> None:
    for name in ("dat-multi_partitioned", "kernelrs-v2-checkpoints-json-with-sidecars"):
        root = tmp_path / "a-root-that-stands-out" / name
        shutil.copytree(corpus / name, root)
        TableBuilder(root).commit(
            [commit_info()], version=open_table(str(root)).latest_version() + 1
        )
        before = {path for path in root.rglob("*") if path.is_file()}
        write(open_table(str(root)))
        new = {path for path in root.rglob("*") if path.is_file()} - before
        assert new
        for path in new | {root / LOG / "_last_checkpoint"}:
            assert b"stands-out" not in path.read_bytes()
