"""Manifests in JSON, and paths and tags of sidecars."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from delta_maintenance.address import Address
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from tests.properties.model import state_of
from tests.support.logs.checkpointed_logs import (
    busy,
    check_falls_back,
    expected,
    leave_only_the_checkpoint,
)
from tests.support.tables.actions import checkpoint_metadata, sidecar
from tests.support.tables.table_builder import LOG, UUID, TableBuilder, log_table, parquet_bytes
from tests.table.failures import fails

MANIFEST = f"{4:020d}.checkpoint.{UUID}.json"
JSON_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[: len(data) // 2], "not valid JSON"),
    "cut in the last line": (lambda data: data[:-5], "not valid JSON"),
    "garbage": (lambda _: b"\x00\x01garbage", "not valid JSON"),
    "not UTF-8": (lambda data: data + b"\xff\n", "is not UTF-8"),
    "blank": (lambda _: b"\n\n", "the file is empty"),
}


@pytest.mark.conformance("CKPT-32", "CKPT-21")
@pytest.mark.parametrize("damage", JSON_DAMAGE)
@pytest.mark.parametrize("sidecars", [0, 2])
def test_a_damaged_json_manifest_is_passed_over(damage: str, sidecars: int) -> None:
    change, problem = JSON_DAMAGE[damage]
    table = busy()
    [name, *_] = table.v2_checkpoint(4, sidecars=sidecars)
    table.write(name, change(table.read(name)))
    snapshot = table.open().snapshot()
    if snapshot.log.checkpoint is not None:
        with pytest.raises(UnusableCheckpointError) as failure:
            state_of(snapshot)
        snapshot = snapshot.avoiding(failure.value)
    assert state_of(snapshot) == expected(table)
    leave_only_the_checkpoint(table)
    with fails(UnusableCheckpointError, problem, table=table, version=4, file=f"{LOG}/{name}"):
        state_of(table.open().snapshot())


@pytest.mark.conformance("CKPT-24")
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "garbage"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_or_damaged_sidecar_is_found_on_opening(damage: str, which: int) -> None:
    table = busy()
    [name, *sidecars] = table.v2_checkpoint(4, sidecars=2)
    match damage:
        case "gone":
            table.drop(sidecars[which])
        case "empty":
            table.zero(sidecars[which])
        case "cut":
            table.truncate(sidecars[which], -6)
        case "garbage":
            table.garbage(sidecars[which])
    check_falls_back(table, sidecars[which], name=name)


SPELLINGS = {
    "bare": "{name}",
    "encoded": "{encoded}",
    "relative to the log": "_sidecars/{name}",
    "relative to the table": "_delta_log/_sidecars/{name}",
    "absolute": "{root}/_delta_log/_sidecars/{name}",
    "encoded and absolute": "{root}/_delta_log/_sidecars/{encoded}",
    "encoded folder": "{root}/_delta_log/%5Fsidecars/{encoded}",
}


@pytest.mark.conformance("CKPT-24")
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    "root", ["memory://sidecar-spellings/a/table", "memory://sidecar-spellings"]
)
def test_a_sidecar_may_be_spelt_in_any_way_that_leads_to_its_folder(
    spelling: str, root: str
) -> None:
    name = "über 100%.parquet"
    table = busy(MemoryStore(Address.parse(f"{root}/{spelling.replace(' ', '-')}")))
    path = SPELLINGS[spelling].format(
        name=name.replace("%", "%25"), encoded="%C3%BCber%20100%25.parquet", root=table.store.root
    )
    write_with_sidecar(table, name, path)
    leave_only_the_checkpoint(table)
    assert state_of(table.open().snapshot()) == expected(table)


def write_with_sidecar(table: TableBuilder, name: str | None, path: str) -> str:
    """A V2 checkpoint whose only sidecar is written as `name` and referred to as `path`."""
    files = [a for a in table.state(4) if a.keys() & {"add", "remove"}]
    others = [a for a in table.state(4) if not a.keys() & {"add", "remove"}]
    data = parquet_bytes(log_table(files).select(["add", "remove"]))
    if name is not None:
        table.write(f"_sidecars/{name}", data)
    return table.manifest(MANIFEST, [checkpoint_metadata(4), sidecar(path, len(data)), *others])


@pytest.mark.conformance("CKPT-24")
@pytest.mark.parametrize(
    "path",
    [
        "../x.parquet",
        "..",
        ".",
        "",
        "%2E%2E",
        "a%2F..%2F..%2Fx.parquet",
        "sub/x.parquet",
        "_sidecars/../x.parquet",
        "_sidecars/",
        "/x.parquet",
        "/elsewhere/_delta_log/_sidecars/x.parquet",
        "file:///elsewhere/_delta_log/_sidecars/x.parquet",
        "memory://other/table/_delta_log/_sidecars/x.parquet",
        "s3://bucket/table/_delta_log/_sidecars/x.parquet",
        "x%00.parquet",
        "x%5Cy.parquet",
        "x%FF.parquet",
    ],
)
def test_a_sidecar_outside_the_folder_is_never_opened(path: str) -> None:
    table = busy(MemoryStore(Address.parse("memory://outside/table")))
    name = write_with_sidecar(table, None, path)
    check_falls_back(table, "is outside _delta_log/_sidecars", name=name)


@pytest.mark.conformance("CKPT-30")
def test_tags_of_manifest_and_sidecars_are_not_believed() -> None:
    table = busy()
    [name, *sidecars] = table.v2_checkpoint(4, sidecars=2)
    others = [a for a in table.state(4) if not a.keys() & {"add", "remove"}]
    lies = {"numOfAddFiles": "99", "sidecarFileSchema": "{", "n": None}
    for tags in (lies, {}, None):
        told = [
            sidecar(path.rpartition("/")[2], 99, tags=tags, type="fileaction", modificationTime=0)
            for path in sidecars
        ]
        table.manifest(name, [checkpoint_metadata(4, tags=tags), *told, *others])
        assert state_of(table.open().snapshot()) == expected(table)
        assert table.open().snapshot().warnings == ()
