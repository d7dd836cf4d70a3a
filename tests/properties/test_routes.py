"""Every route to a version results in the state of a naive replay of its commits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.model import State, replay, state_of
from tests.support.suite.play import examples
from tests.support.tables.actions import (
    Action,
    add,
    cdc,
    commit_info,
    deletion_vector,
    domain,
    dv_id,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import UUID, TableBuilder

PATHS = ["a", "b", "part=1/c%20d", "é\u2028f", "p" * 40]
VECTORS = [
    None,
    deletion_vector("ab^-aqEH.-t@S}K{vb[*k^"),
    deletion_vector("ab^-aqEH.-t@S}K{vb[*k^", offset=40),
    deletion_vector("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", storage_type="i"),
]
TEXT = st.sampled_from(["", "x", "2024-01-01", "2024-01-01 00:00:00", "1.5", "null", 'q"\\\n', "é"])
BIG = st.integers(-(2**63), 2**63 - 1)


@st.composite
def files(draw: st.DrawFn, action: Any, path: str, dv: Action | None) -> Action:
    """An add or remove with any of its optional fields, and with unknown fields."""
    optional: dict[str, st.SearchStrategy[Any]] = {
        "size": BIG,
        "partitionValues": st.dictionaries(st.sampled_from(["part", "other"]), TEXT | st.none()),
        "tags": st.dictionaries(st.sampled_from(["T1", "T2"]), TEXT, min_size=1),
        "stats": st.sampled_from(['{"numRecords":3}', "{", "", '{"a":"\\u2028"}']),
        "baseRowId": BIG,
        "defaultRowCommitVersion": BIG,
        "odd": st.integers(-5, 5),
        "dateLike": TEXT,
        "nested": st.fixed_dictionaries({"when": TEXT, "n": BIG}),
    }
    names = draw(st.lists(st.sampled_from(sorted(optional)), unique=True))
    fields = {name: draw(optional[name]) for name in names}
    if "partitionValues" in fields:
        # Only columns of the table may be null; other nulls are not values.
        values = fields["partitionValues"]
        fields["partitionValues"] = {"part": values.get("part")} | {
            name: value for name, value in values.items() if value is not None
        }
    else:
        fields["partitionValues"] = {"part": None}
    made: Action = action(path, dv=dv, **fields)
    return made


@st.composite
def histories(draw: st.DrawFn) -> list[list[Action]]:
    """Commits that no rule of the protocol forbids."""
    commits: list[list[Action]] = []
    live: dict[str, Action | None] = {}
    for version in range(draw(st.integers(1, 7))):
        commit: list[Action] = [commit_info(version=99, add="no action")]
        if version == 0 or draw(st.integers(0, 5)) == 0:
            commit.append(features("deletionVectors", "v2Checkpoint", writer_only=["x"][:version]))
        if version == 0 or draw(st.integers(0, 5)) == 0:
            commit.append(metadata(name=f"v{version}", partitioned_by=["part"]))
        for path in draw(st.lists(st.sampled_from(PATHS), unique=True, max_size=4)):
            commit += draw(changes(path, live))
        for app in draw(st.sets(st.sampled_from(["app", "other"]))):
            commit.append(txn(app, draw(st.integers(0, 9))))
        for name in draw(st.sets(st.sampled_from(["delta.x", "user"]))):
            commit.append(domain(name, f"v{version} ", removed=draw(st.booleans())))
        if draw(st.booleans()):
            commit.append(cdc(draw(st.sampled_from(PATHS))))
        commits.append(commit)
    return commits


@st.composite
def changes(draw: st.DrawFn, path: str, live: dict[str, Action | None]) -> list[Action]:
    if path not in live:
        vector = draw(st.sampled_from(VECTORS[:2]))
        if draw(st.integers(0, 4)) == 0:
            # A remove without an earlier add, as after an expired history.
            return [draw(files(remove, path, vector))]
        live[path] = vector
        return [draw(files(add, path, vector))]
    old = live[path]
    kind = draw(st.sampled_from(["remove", "again", "vector"]))
    if kind == "remove":
        del live[path]
        return [draw(files(remove, path, old))]
    if kind == "again":
        return [draw(files(add, path, old))]
    new = draw(st.sampled_from([vector for vector in VECTORS if vector != old]))
    live[path] = new
    return [draw(files(remove, path, old)), draw(files(add, path, new))]


@dataclass(frozen=True)
class Layout:
    """Optional files beside the commits, which do not change any state."""

    checkpoints: Sequence[tuple[int, str]]
    compactions: Sequence[tuple[int, int]]
    hint: int | None
    seed: int | None
    """Shuffles the lines of every commit."""


@st.composite
def layouts(draw: st.DrawFn, last: int) -> Layout:
    versions = st.integers(0, last)
    kinds = st.sampled_from(["classic", "parts", "json", "json+2", "parquet", "parquet+1", "v2+1"])
    pairs = st.tuples(versions, versions).filter(lambda pair: pair[0] < pair[1])
    return Layout(
        checkpoints=draw(st.lists(st.tuples(versions, kinds), max_size=3)),
        compactions=draw(st.lists(pairs, max_size=3)) if last else [],
        hint=draw(st.none() | st.integers(0, last + 1)),
        seed=draw(st.none() | st.integers(0, 99)),
    )


def build(commits: Sequence[Sequence[Action]], layout: Layout) -> TableBuilder:
    table = TableBuilder()
    for commit in commits:
        lines = list(commit)
        if layout.seed is not None:
            random.Random(layout.seed).shuffle(lines)
        table.commit(lines)
    for number, (version, kind) in enumerate(layout.checkpoints):
        uuid = f"{UUID[:-1]}{number}"
        match kind.split("+"):
            case ["classic"]:
                table.checkpoint(version, rows_per_group=2)
            case ["parts"]:
                table.checkpoint(version, parts=3)
            case ["v2", sidecars]:
                table.v2_checkpoint(version, uuid=None, sidecars=int(sidecars))
            case ["json", *sidecars]:
                table.v2_checkpoint(version, uuid=uuid, sidecars=int("".join(sidecars) or 0))
            case ["parquet", *sidecars]:
                count = int("".join(sidecars) or 0)
                table.v2_checkpoint(version, uuid=uuid, sidecars=count, encoding="parquet")
    for first, last in layout.compactions:
        table.compaction(first, last)
    if layout.hint is not None:
        table.hint(layout.hint)
    return table


def check_every_version(table: TableBuilder, commits: Sequence[Sequence[Action]]) -> None:
    opened = table.open()
    for version in range(len(commits)):
        snapshot = opened.snapshot(version=version)
        expected = replay(commits[: version + 1])
        assert snapshot.warnings == ()
        assert state_of(snapshot) == expected
        check_views(expected, snapshot)
    assert opened.snapshot().version == len(commits) - 1


def check_views(expected: State, snapshot: Any) -> None:
    live, tombstones, counts = snapshot.live_files(), snapshot.tombstones(), snapshot.counts
    assert set(zip(live["path"].to_pylist(), live["dv"].to_pylist(), strict=True)) == set(
        expected.live
    )
    assert set(
        zip(tombstones["path"].to_pylist(), tombstones["dv"].to_pylist(), strict=True)
    ) == set(expected.tombstones)
    assert counts.num_files == live.num_rows == len(expected.live)
    assert counts.num_tombstones == tombstones.num_rows == len(expected.tombstones)
    assert counts.num_deletion_vectors == sum(dv is not None for _, dv in expected.live)
    assert counts.num_deleted_rows == sum(
        value["deletionVector"]["cardinality"] for value in expected.live.values() if dv_id(value)
    )


@pytest.mark.conformance(
    "LOG-04",
    "LOG-05",
    "LOG-12",
    "META-02",
    "FILE-11",
    "CDC-01",
    "REC-01",
    "REC-02",
    "REC-03",
    "REC-04",
    "REC-06",
    "REC-08",
    "CKPT-02",
    "CKPT-27",
    "COMP-07",
    "COMP-08",
    "LAST-02",
    "PART-03",
)
@settings(max_examples=examples(60))
@given(st.data())
def test_every_route_to_every_version_gives_the_state_of_a_naive_replay(
    data: st.DataObject,
) -> None:
    commits = data.draw(histories())
    layout = data.draw(layouts(len(commits) - 1))
    check_every_version(build(commits, layout), commits)
