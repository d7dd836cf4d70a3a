"""Whatever goes wrong while a checkpoint is written is found before any reader can see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_maintenance.errors import VerificationError
from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.write import checkpoint_writer, sidecar_writer
from delta_maintenance.table.write.checkpoint_spec import ActionFile
from delta_maintenance.table.write.staging import publish
from tests.support.logs.checkpointing import KEEP_TOMBSTONES, SIDECARS, files_of, write
from tests.support.tables.actions import (
    add,
    deletion_vector,
    domain,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import TableBuilder

Tamper = Callable[[pa.Table], pa.Table]


def busy_table() -> TableBuilder:
    table = TableBuilder()
    table.commit(
        [
            features("v2Checkpoint", "deletionVectors"),
            metadata(configuration=KEEP_TOMBSTONES),
            add("a"),
            add("b", dv=deletion_vector()),
            remove("c"),
            txn("app", 1),
            domain("d", "some text"),
        ]
    )
    return table


def without_first(column: str) -> Tamper:
    return lambda table: table.slice(1) if column in table.column_names else table


def repeating_first(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(0, 1)]) if "add" in table.column_names else table


def adds_as_removes(table: pa.Table) -> pa.Table:
    if "add" not in table.column_names:
        return table
    adds = table["add"].combine_chunks()
    kind = FileActionLayout(stats_as_json=True, statistics_type=None).remove_type
    present = {field.name for field in adds.type}
    children = [
        pc.struct_field(adds, field.name)
        if field.name in present
        else pa.nulls(len(adds), field.type)
        for field in kind
    ]
    return pa.table({"remove": pa.StructArray.from_arrays(children, fields=list(kind))})


def with_field(column: str, name: str, change: Callable[[pa.Array], pa.Array]) -> Tamper:
    def tamper(table: pa.Table) -> pa.Table:
        if column not in table.column_names:
            return table
        rows = table[column].combine_chunks()
        children = [pc.struct_field(rows, field.name) for field in rows.type]
        at = rows.type.get_field_index(name)
        children[at] = change(children[at])
        changed = pa.StructArray.from_arrays(
            children, fields=list(rows.type), mask=pc.is_null(rows)
        )
        return table.set_column(table.column_names.index(column), column, changed)

    return tamper


def flipped(values: pa.Array) -> pa.Array:
    return pc.utf8_swapcase(values)


def cleared(values: pa.Array) -> pa.Array:
    return pa.nulls(len(values), values.type)


def raised(values: pa.Array) -> pa.Array:
    return pc.add(values, 1).cast(values.type)


DAMAGE_TO_FILES = {
    "a live file is lost": without_first("add"),
    "a tombstone is lost": without_first("remove"),
    "a live file is there twice": repeating_first,
    "a path is flipped": with_field("add", "path", flipped),
    "the path of a tombstone is flipped": with_field("remove", "path", flipped),
    "deletion vectors are lost": with_field("add", "deletionVector", cleared),
    "a size has changed": with_field("add", "size", raised),
    "an add has become a remove": adds_as_removes,
}
DAMAGE_TO_OTHERS = {
    "the protocol has changed": with_field("protocol", "minWriterVersion", raised),
    "the schema is lost": with_field("metaData", "schemaString", cleared),
    "a transaction has changed": with_field("txn", "version", raised),
    "a domain has changed": with_field("domainMetadata", "configuration", flipped),
    "all of it is lost": lambda table: (
        table.slice(0, 0) if "protocol" in table.column_names else table
    ),
}


def expect_nothing_published(table: TableBuilder, kind: str, per_sidecar: int) -> None:
    before = files_of(table.store)
    with pytest.raises(VerificationError) as failure:
        write(table.open(), kind, per_sidecar)
    assert failure.value.remedy and failure.value.file
    now = files_of(table.store)
    # Valid sidecars may exist alone, but no file that readers use has been published.
    visible = {path: data for path, data in now.items() if not path.startswith(SIDECARS)}
    assert visible == before
    if per_sidecar == 0 or kind == "classic":
        assert now == before


def tampering(monkeypatch: pytest.MonkeyPatch, tamper: Tamper) -> None:
    """Lets every row group pass through `tamper` on its way to a staged file."""
    honest = ActionFile._write
    monkeypatch.setattr(ActionFile, "_write", lambda self, table: honest(self, tamper(table)))


def cutting(monkeypatch: pytest.MonkeyPatch, verify: str) -> None:
    """Cuts staged files at their end just before they are verified."""
    module = sidecar_writer if verify == "verify_sidecar" else checkpoint_writer
    honest = getattr(module, verify)

    def cut(staged: Any, name: str, *rest: Any, **named: Any) -> None:
        path = staged.path(name)
        path.write_bytes(path.read_bytes()[:-20])
        honest(staged, name, *rest, **named)

    monkeypatch.setattr(module, verify, cut)


@pytest.mark.conformance("PQ-04")
@pytest.mark.parametrize("tamper", DAMAGE_TO_FILES.values(), ids=DAMAGE_TO_FILES)
@pytest.mark.parametrize(
    ("kind", "per_sidecar"), [("classic", 0), ("v2-parquet", 0), ("v2-json", 9), ("v2-parquet", 1)]
)
def test_damaged_file_actions_are_found_before_publication(
    monkeypatch: pytest.MonkeyPatch, tamper: Tamper, kind: str, per_sidecar: int
) -> None:
    tampering(monkeypatch, tamper)
    table = busy_table()
    expect_nothing_published(table, kind, per_sidecar)
    # Sidecars are published together, after the last one is verified.
    assert not list(table.store.list_from(SIDECARS))


@pytest.mark.conformance("PQ-04")
@pytest.mark.parametrize("tamper", DAMAGE_TO_OTHERS.values(), ids=DAMAGE_TO_OTHERS)
@pytest.mark.parametrize(("kind", "per_sidecar"), [("classic", 0), ("v2-classic", 2)])
def test_damage_to_other_actions_is_found_before_publication(
    monkeypatch: pytest.MonkeyPatch, tamper: Tamper, kind: str, per_sidecar: int
) -> None:
    tampering(monkeypatch, tamper)
    expect_nothing_published(busy_table(), kind, per_sidecar)


@pytest.mark.conformance("PQ-04")
@pytest.mark.parametrize("kind", ["classic", "v2-classic", "v2-parquet", "v2-json"])
@pytest.mark.parametrize("per_sidecar", [0, 2])
def test_a_truncated_staged_file_is_never_announced(
    monkeypatch: pytest.MonkeyPatch, kind: str, per_sidecar: int
) -> None:
    cutting(monkeypatch, "verify_checkpoint")
    table = busy_table()
    # The damage is not mistaken for damage to the snapshot's own checkpoint.
    table.checkpoint()
    table.commit([add("late")])
    expect_nothing_published(table, kind, per_sidecar)


@pytest.mark.conformance("PQ-04")
def test_a_truncated_staged_sidecar_is_never_published(monkeypatch: pytest.MonkeyPatch) -> None:
    cutting(monkeypatch, "verify_sidecar")
    table = busy_table()
    expect_nothing_published(table, "v2-json", 2)
    assert not list(table.store.list_from(SIDECARS))


@pytest.mark.conformance("PQ-04")
def test_damage_to_a_json_checkpoint_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = checkpoint_writer._json_lines
    for damage in (
        lambda lines: lines[1:],
        lambda lines: [line.replace('"a"', '"A"') for line in lines],
        lambda lines: [line.replace("deletionVector", "deletedVector") for line in lines],
    ):
        monkeypatch.setattr(
            checkpoint_writer,
            "_json_lines",
            lambda action, rows, damage=damage: damage(honest(action, rows)),
        )
        expect_nothing_published(busy_table(), "v2-json", 0)


@pytest.mark.conformance("PQ-04")
@pytest.mark.parametrize("keep", [0, 1, -1])
def test_a_partially_uploaded_file_is_not_announced(
    monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    table = busy_table()

    def published_in_part(staged: Any, store: Store, name: str) -> Any:
        class Lossy(MemoryStore):
            """Keeps only the beginning of what is written."""

            def put_if_absent(self, path: str, data: bytes) -> Any:
                return store.put_if_absent(path, data[:keep])

            def stat(self, path: str) -> Any:
                return store.stat(path)

        return publish(staged, Lossy(), name)

    monkeypatch.setattr(checkpoint_writer, "publish", published_in_part)
    with pytest.raises(VerificationError, match="instead of") as failure:
        write(table.open(), "classic")
    assert failure.value.file == "_delta_log/00000000000000000000.checkpoint.parquet"
    assert "_last_checkpoint" not in table.names()
