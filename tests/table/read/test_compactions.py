"""Log compactions: used if they are sound and in range, and never required."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from delta_maintenance.errors import CorruptTableError
from tests.properties.model import replay, state_of
from tests.support.tables.actions import (
    Action,
    add,
    cdc,
    commit_info,
    deletion_vector,
    domain,
    metadata,
    protocol,
    remove,
    txn,
)
from tests.support.tables.table_builder import LOG, Line, TableBuilder
from tests.table.failures import fails

LAST = 5


def busy() -> TableBuilder:
    table = TableBuilder()
    table.commit([commit_info("CREATE"), protocol(), metadata(), add("a"), txn("app", 1)])
    table.commit([add("b"), domain("d", "1"), cdc("x")])
    table.commit([remove("a"), domain("d", "1", removed=True), add("a", dv=deletion_vector())])
    table.commit([remove("b"), add("c"), txn("app", 0)])
    table.commit([add("b"), remove("a", dv=deletion_vector()), metadata(name="new")])
    table.commit([commit_info("LAST"), add("d"), domain("d", "2")])
    return table


def check(table: TableBuilder, *, warnings: int = 0) -> None:
    for version in range(LAST + 1):
        snapshot = table.open().snapshot(version=version)
        commits: Sequence[Sequence[Action]] = [table.commits[n] for n in range(version + 1)]
        assert state_of(snapshot) == replay(commits), version
        assert snapshot.log.state.commit_info is None or version in (0, LAST)
    assert len(table.open().snapshot().warnings) == warnings


def used(table: TableBuilder, version: int | None = None) -> list[str]:
    """The compactions in the tail of a snapshot."""
    tail = table.open().snapshot(version=version).log.segment.tail
    return [entry.file.name for entry in tail if entry.file.end_version is not None]


@pytest.mark.conformance("COMP-07", "LOG-12")
def test_any_set_of_compactions_gives_the_state_of_the_commits() -> None:
    ranges = [(0, 1), (1, 3), (2, 5), (0, 5), (4, 5)]
    for count in range(len(ranges) + 1):
        for chosen in itertools.combinations(ranges, count):
            table = busy()
            names = [table.compaction(first, last) for first, last in chosen]
            check(table)
            assert set(used(table)) <= set(names)
            assert bool(used(table)) == bool(chosen)


@pytest.mark.conformance("COMP-08")
def test_only_compactions_between_base_and_target_are_used() -> None:
    table = busy()
    table.checkpoint(2)
    straddling, within, first = (
        table.compaction(1, 3),
        table.compaction(3, 5),
        table.compaction(0, 2),
    )
    assert used(table) == [within]
    assert used(table, 4) == []
    assert used(table, 2) == []
    assert straddling not in used(table, 1) and first not in used(table, 1)
    check(table)


@pytest.mark.conformance("COMP-08")
def test_the_first_and_longest_overlapping_compaction_is_used() -> None:
    table = busy()
    table.compaction(1, 2), table.compaction(2, 5)
    longest, rest = table.compaction(1, 3), table.compaction(4, 5)
    assert used(table) == [longest, rest]
    check(table)


@pytest.mark.conformance("COMP-09")
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_compaction_does_not_replace_a_missing_commit(missing: int) -> None:
    table = busy()
    table.compaction(1, 3)
    table.drop(f"{missing:020d}.json")
    with fails(
        CorruptTableError,
        f"commit {missing} is missing",
        table=table,
        version=LAST,
        file=f"{LOG}/{missing:020d}.json",
    ):
        table.open().snapshot()


UNSOUND: dict[str, tuple[list[Line], str]] = {
    "a file twice": ([add("b"), remove("b")], "two actions for one logical file"),
    "an add twice": ([add("b"), add("b", size=9)], "two actions for one logical file"),
    "a file with a vector twice": (
        [add("b", dv=deletion_vector()), remove("b", dv=deletion_vector())],
        "two actions for one logical file",
    ),
    "a transaction twice": ([txn("app", 1), txn("app", 2)], "two actions for txn app"),
    "a domain twice": ([domain("d", "1"), domain("d", "2")], "two actions for domainMetadata d"),
    "two protocols": ([protocol(), protocol(1, 3)], "two actions for protocol"),
    "two metaData": ([metadata(), metadata(name="x")], "two actions for metaData"),
    "a cut line": (['{"add":{"path":"b"'], "not valid JSON"),
    "a size of text": (
        ['{"add":{"path":"b","size":"x"}}', '{"add":5}'],
        "add is not a JSON object",
    ),
    "nothing": ([""], "the file is empty"),
    "no UTF-8": ([b'{"txn":{"appId":"\xff"}}'], "not UTF-8"),
    "no path": ([add("b"), '{"add":{"size":5}}'], "lacks its path"),
}


@pytest.mark.conformance("COMP-10")
@pytest.mark.parametrize("kind", UNSOUND)
def test_an_unsound_compaction_is_passed_over_and_reported(kind: str) -> None:
    lines, problem = UNSOUND[kind]
    table = busy()
    name = table.compaction(1, 3, lines=lines)
    sound = table.compaction(4, 5)

    check(table, warnings=1)

    [warning] = table.open().snapshot().warnings
    assert name in warning and problem in warning
    assert used(table) == [sound]


@pytest.mark.conformance("COMP-10")
def test_a_compaction_of_no_bytes_does_not_exist() -> None:
    table = busy()
    table.zero(table.compaction(1, 3))
    check(table)
    assert used(table) == []


@pytest.mark.conformance("COMP-08")
def test_one_path_with_two_vectors_is_no_repetition() -> None:
    table = busy()
    name = table.compaction(0, 2)
    assert used(table) == [name]
    check(table)


@pytest.mark.conformance("REC-09", "CDC-01")
def test_times_and_commit_info_come_from_the_covered_commits() -> None:
    plain, table = busy(), busy()
    table.compaction(0, 5, lines=[commit_info("LIE"), cdc("lie"), *table.reconciled(0, 5)])
    snapshot = table.open().snapshot()
    assert used(table)
    assert snapshot.log.state.commit_info is not None
    assert snapshot.log.state.commit_info.operation == "LAST"
    assert snapshot.timestamp == plain.open().snapshot().timestamp
    assert table.open().history() == plain.open().history()
    check(table)
