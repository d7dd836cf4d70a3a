"""Choice of the checkpoint under a version, and its agreement with the commits."""

from __future__ import annotations

import itertools

import pytest

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.delta_log import Encoding
from tests.properties.model import state_of
from tests.support.logs.checkpointed_logs import KINDS, busy, expected, leave_only_the_checkpoint
from tests.support.stores.counting_store import CountingStore
from tests.support.tables.actions import (
    add,
    checkpoint_metadata,
    deletion_vector,
    domain,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import LOG, UUID, TableBuilder
from tests.table.failures import fails


@pytest.mark.conformance("CKPT-15", "CKPT-19", "CKPT-21", "CKPT-23", "CKPT-07")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_checkpoint_gives_the_state_without_the_commits_before_it(kind: str) -> None:
    table = busy()
    KINDS[kind](table)
    leave_only_the_checkpoint(table)

    for version in (4, 5):
        snapshot = table.open().snapshot(version=version)
        assert state_of(snapshot) == expected(table, version)
        assert snapshot.warnings == ()
        assert snapshot.log.checkpoint is not None
        assert snapshot.log.checkpoint.is_v2 == (
            kind not in ("classic", "row groups of 1") and "parts" not in kind
        )


@pytest.mark.conformance("CKPT-23")
@pytest.mark.parametrize("encoding", ["json", "parquet"])
def test_an_empty_table_has_a_manifest_without_sidecars(encoding: Encoding) -> None:
    table = TableBuilder()
    table.commit([features("v2Checkpoint"), metadata()])
    table.v2_checkpoint(encoding=encoding)
    snapshot = table.open().snapshot()
    assert snapshot.log.checkpoint is not None
    assert (snapshot.counts.num_files, snapshot.live_files().num_rows) == (0, 0)


@pytest.mark.conformance("CKPT-02")
def test_the_newest_checkpoint_not_newer_than_the_version_is_the_base() -> None:
    table = busy()
    for version in (1, 3, 5):
        table.checkpoint(version)
    bases = {
        version: table.open().snapshot(version=version).log.segment.base_version
        for version in range(6)
    }
    assert bases == {0: -1, 1: 1, 2: 1, 3: 3, 4: 3, 5: 5}


@pytest.mark.conformance("CKPT-16")
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_set_of_parts_counts_only_if_every_part_is_there(parts: int) -> None:
    for kept in range(parts):
        for present in itertools.combinations(range(parts), kept):
            table = busy()
            names = table.checkpoint(4, parts=parts)
            table.drop(*(name for at, name in enumerate(names) if at not in present))
            snapshot = table.open().snapshot()
            assert snapshot.log.checkpoint is None
            assert state_of(snapshot) == expected(table)
            leave_only_the_checkpoint(table)
            with fails(
                CorruptTableError, "commit 0 is missing", table=table, version=5,
                file=f"{LOG}/{0:020d}.json",
            ):  # fmt: skip
                table.open().snapshot()


@pytest.mark.conformance("CKPT-16")
def test_parts_of_two_sets_do_not_complete_each_other() -> None:
    table = busy()
    first, second = table.checkpoint(4, parts=2), table.checkpoint(4, parts=3)
    table.drop(first[0], second[2])
    assert table.open().snapshot().log.checkpoint is None
    assert state_of(table.open().snapshot()) == expected(table)


@pytest.mark.conformance("CKPT-05", "REC-03")
@pytest.mark.parametrize("kind", ["classic", "json", "parquet"])
def test_removed_domains_in_a_checkpoint_are_hidden(kind: str) -> None:
    table = TableBuilder()
    table.commit([features("v2Checkpoint"), metadata(), domain("d", "old"), domain("e", "x")])
    table.commit([domain("d", "old", removed=True)])
    actions = table.reconciled(0, 1)
    if kind == "classic":
        table.checkpoint(1, actions=actions)
    else:
        table.manifest(f"{1:020d}.checkpoint.{UUID}.{kind}", [checkpoint_metadata(1), *actions])
    assert table.open().snapshot().domain_metadata == {"e": "x"}
    table.commit([domain("d", "new")])
    assert table.open().snapshot().domain_metadata == {"d": "new", "e": "x"}


@pytest.mark.conformance("REC-09")
def test_a_damaged_commit_below_a_checkpoint_loses_only_its_own_information() -> None:
    table = busy()
    table.checkpoint(5)
    for damage in (b"", b"{", b"\xff"):
        table.write(f"{5:020d}.json", damage)
        snapshot = table.open().snapshot()
        assert state_of(snapshot) == expected(table)
        assert snapshot.log.state.commit_info is None
        assert f"{5:020d}.json" in " ".join(snapshot.warnings)


def opened(store: CountingStore) -> int:
    return sum(request.startswith("open ") for request in store.requests)


def test_the_actions_of_a_checkpoint_are_read_in_few_requests() -> None:
    store = CountingStore()
    table = TableBuilder(store)
    singles = [features("domainMetadata"), metadata(), domain("mine", "1"), txn("me", 1)]
    table.commit([*singles, add("live"), remove("gone", deletionTimestamp=1 << 43)])
    table.checkpoint()
    store.requests.clear()
    snapshot = table.open().snapshot()
    assert snapshot.log.checkpoint is not None
    assert len(snapshot.log.state.domains) == len(snapshot.log.state.txns) == 1
    assert opened(store) == 2, "the footer, and all single actions"
    store.requests.clear()
    [found] = snapshot.log.scan()
    assert len(found.adds) == len(found.tombstones) == 1
    assert opened(store) == 1, "adds and removes"


@pytest.mark.conformance("REC-09", "LOG-11")
def test_a_checkpoint_without_its_commit_opens_with_an_unknown_time() -> None:
    table = busy()
    table.checkpoint(5)
    table.drop(*(f"{version:020d}.json" for version in range(6)))
    snapshot = table.open().snapshot()
    assert state_of(snapshot) == expected(table)
    assert (snapshot.timestamp, snapshot.log.state.commit_info) == (None, None)


@pytest.mark.conformance("REC-04", "REC-06", "REC-08")
def test_a_checkpoint_may_hold_one_path_live_and_removed_with_another_vector() -> None:
    table = TableBuilder()
    table.commit([features("deletionVectors"), metadata(), add("a")])
    table.commit([remove("a"), add("a", dv=deletion_vector("one"))])
    table.commit([remove("a", dv=deletion_vector("one")), add("a", dv=deletion_vector("two"))])
    table.checkpoint(2)
    table.drop(*(f"{version:020d}.json" for version in range(3)))
    snapshot = table.open().snapshot()
    assert snapshot.live_files()["dv"].to_pylist() == ["utwo@1"]
    assert set(snapshot.tombstones()["dv"].to_pylist()) == {None, "uone@1"}
