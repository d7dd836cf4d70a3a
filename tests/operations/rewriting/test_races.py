"""Other writers commit between the reading of files and the commit of the new ones.

Each race takes place with files that are all decoded, and with files whose row groups are copied
beside those of decoded ones, which are written last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyroaring import BitMap64

from delta_maintenance.errors import CommitUnknownError
from delta_maintenance.operations import checkpoint, optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import commits, contract
from delta_maintenance.operations.rewriting.sources import FollowedSources
from delta_maintenance.storage.core import Put
from delta_maintenance.table.commit.concurrent_commits import advance
from delta_maintenance.table.data import carried_deletions, rewrite
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import ROW_TRACKING, field, schema_string
from tests.support.rewrites.data_files import removed as remove_of
from tests.support.rewrites.rewrite_results import described, files_of
from tests.support.rewrites.rewritten_tables import (
    COPIED_BYTES,
    NOW,
    Rewritten,
    ids,
    numbers,
    without,
)
from tests.support.rewrites.table_rows import actions_of, latest, live_adds
from tests.support.tables import actions as log

Race = Callable[[], object]


COMMIT, DATA_FILE = "_delta_log/", "p="
"""Prefixes of the files before which others act."""


@pytest.fixture(autouse=True, params=["decoded", "copied beside decoded"])
def _copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    done: list[bool] = []
    original = rewrite.copied_bin

    def noted(*given: Any, **options: Any) -> Any:
        found = original(*given, **options)
        done.append(found is not None)
        return found

    copies = request.param != "decoded"
    if copies:
        monkeypatch.setattr(Rewritten, "mixed", True)
        monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", COPIED_BYTES)
    monkeypatch.setattr(rewrite, "copied_bin", noted)
    yield
    assert not done or any(done) == copies


def race(made: Rewritten, *races: Race | None, before: str = COMMIT) -> None:
    """Others act right before each of our commits, or data files, in this order."""
    made.store.races = list(races)
    made.store.prefix = before


def fates(result: Any) -> dict[str, str]:
    """The fate of the bin of each partition."""
    return {report.partition["p"]: report.fate for report in result.bins}


def change_table(made: Rewritten, **changes: Any) -> int:
    """Commits the metadata with some changes."""
    lines = [log.metadata(**changes)]
    return made.table.builder.commit(lines)


SCHEMA = (field("a", "long"), field("b", "string"), field("p", "string"))


@pytest.mark.conformance("RW-29", "RW-31")
def test_appends_change_nothing() -> None:
    made = Rewritten()
    race(made, lambda: made.table.append(numbers(900), partitionValues={"p": "x"}))
    result = made.optimize()
    assert (result.status, fates(result)) == ("rewritten", dict.fromkeys("xyz", "committed"))
    assert len(made.rows()) == 52


@pytest.mark.conformance("RW-24", "RW-29", "RW-30", "DV-12", "STAT-02")
@pytest.mark.parametrize("moment", [COMMIT, DATA_FILE])
def test_rows_that_others_delete_are_deleted_from_the_new_file(moment: str) -> None:
    made = Rewritten()
    made.table.delete(made.paths["y"][2], [0])
    before = made.rows()
    race(made, lambda: made.table.delete(made.paths["y"][2], [0, 2, 3]), before=moment)
    result = made.optimize()
    assert fates(result) == {"x": "committed", "y": "remapped", "z": "committed"}
    assert made.rows() == without(before, 122, 123)
    [add] = [add for add in live_adds(made.store).values() if add.get("deletionVector")]
    assert add["deletionVector"]["cardinality"] == 2
    assert json.loads(add["stats"])["tightBounds"] is False
    paths = {path for paths in made.paths.values() for path in paths}
    assert described(made) == paths - {made.paths["y"][2]}


@pytest.mark.conformance("RW-30")
def test_a_vector_for_other_rows_is_never_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Rewritten()
    before = made.rows()
    original = carried_deletions.carry_over

    def shifted(*given: Any, **options: Any) -> Any:
        places = original(*given, **options)
        return None if places is None else places.shift(1)

    monkeypatch.setattr(carried_deletions, "carry_over", shifted)
    race(made, lambda: made.table.delete(made.paths["y"][1], [1]))
    result = made.optimize()
    assert fates(result) == {"x": "committed", "y": "not-proved", "z": "committed"}
    [problem] = [report.problem for report in result.bins if report.fate == "not-proved"]
    assert "the rows to delete from the new file are not those" in problem
    assert made.rows() == without(before, 111)


def test_each_deleted_row_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Rewritten()
    path = made.paths["y"][1]
    compared: list[int] = []
    original = carried_deletions._hashes_at

    def noted(*given: Any) -> Any:
        compared.append(len(given[2]))
        return original(*given)

    monkeypatch.setattr(carried_deletions, "_hashes_at", noted)
    # Each commit of the bins loses two races.
    race(made, *(lambda at=at: made.table.delete(path, at) for at in ([0], [0, 2, 3])))
    assert fates(made.optimize())["y"] == "remapped"
    # In the source and in the new file: the first row, then two more.
    assert compared == [1, 1, 2, 2]


@pytest.mark.conformance("RW-29", "RW-30", "RW-41")
def test_without_vectors_the_new_file_is_written_again() -> None:
    made = Rewritten(vectors=False)
    before = made.rows()
    race(made, lambda: made.table.delete(made.paths["y"][1], [1]))
    result = made.optimize()
    assert fates(result) == {"x": "committed", "y": "written-again", "z": "committed"}
    assert made.rows() == without(before, 111)
    assert not any(add.get("deletionVector") for add in live_adds(made.store).values())
    paths = {path for paths in made.paths.values() for path in paths}
    assert described(made) == paths - {made.paths["y"][1]}


@pytest.mark.conformance("RW-29")
@pytest.mark.parametrize("vectors", [True, False])
def test_a_source_that_others_delete_does_not_come_back(vectors: bool) -> None:
    made = Rewritten(vectors=vectors)
    before = made.rows()
    race(made, lambda: made.table.remove(made.paths["y"][3]))
    result = made.optimize()
    assert fates(result)["y"] == ("remapped" if vectors else "written-again")
    assert made.rows() == without(before, 130, 131, 132, 133)
    assert result.files_before == 11


@pytest.mark.conformance("RW-29", "RW-18")
def test_a_bin_that_lost_all_its_sources_commits_nothing() -> None:
    made = Rewritten()
    before = made.rows()
    race(made, lambda: [made.table.remove(path) for path in made.paths["y"]])
    result = made.optimize()
    assert fates(result) == {"x": "committed", "y": "dropped", "z": "committed"}
    assert made.rows() == without(before, *range(100, 200))


@pytest.mark.conformance("RW-29", "RW-18")
def test_rows_that_all_go_leave_no_new_file() -> None:
    made = Rewritten()
    before = made.rows()
    race(made, lambda: [made.table.delete(path, range(4)) for path in made.paths["y"]])
    result = made.optimize()
    assert fates(result) == {"x": "committed", "y": "written-again", "z": "committed"}
    assert made.rows() == without(before, *range(100, 200))
    assert not set(made.paths["y"]) & set(live_adds(made.store))


@pytest.mark.conformance("RW-29")
def test_another_optimize_takes_its_bins_and_no_other() -> None:
    made = Rewritten()
    before = made.rows()
    race(made, lambda: made.optimize(seed=1, where="p = 'y'"))
    result = made.optimize()
    assert fates(result) == {"x": "committed", "y": "superseded", "z": "committed"}
    assert (result.status, made.rows()) == ("rewritten", before)


@pytest.mark.conformance("RW-29")
def test_a_second_run_finds_the_work_of_the_first_done() -> None:
    made = Rewritten()
    before = made.rows()
    race(made, lambda: made.optimize(seed=1))
    result = made.optimize()
    assert (result.status, set(fates(result).values())) == ("nothing-to-do", {"superseded"})
    assert (made.rows(), result.num_commits) == (before, 0)


@pytest.mark.conformance("RW-29", "RW-30")
def test_a_lost_race_for_every_bin_is_a_conflict() -> None:
    made = Rewritten(partitions="y")
    race(made, lambda: [made.table.remove(path) for path in made.paths["y"]])
    assert made.optimize().status == "conflict"


@pytest.mark.conformance("RW-29", "RW-30")
def test_rows_that_come_back_cost_the_bin() -> None:
    made = Rewritten()
    made.table.delete(made.paths["y"][0], [0, 1])

    def restore() -> None:
        made.table.delete(made.paths["y"][0], [0])

    race(made, restore)
    assert fates(made.optimize()) == {"x": "committed", "y": "dropped", "z": "committed"}
    assert len(made.rows()) == 47


@pytest.mark.conformance("RW-29", "RW-30")
@pytest.mark.parametrize("vectors", [True, False])
def test_another_vector_for_the_same_rows_costs_no_vector_and_no_new_file(vectors: bool) -> None:
    made = Rewritten(vectors=vectors)
    path = made.paths["y"][0]
    made.table.delete(path, [0, 1])
    old = made.table.live[path]
    [stored] = carried_deletions.write_vectors(made.store, [BitMap64([0, 1])], new_id=ids(9))
    new = old | {"deletionVector": stored.to_json()}
    before, files = made.rows(), files_of(made.store)
    race(made, lambda: made.table.builder.commit([{"remove": remove_of(old)}, {"add": new}]))
    assert fates(made.optimize()) == dict.fromkeys("xyz", "committed")
    assert made.rows() == before
    assert len(files_of(made.store) - files) == 3
    assert not any(add.get("deletionVector") for add in live_adds(made.store).values())


@pytest.mark.conformance("RW-29", "RT-07")
def test_the_newest_facts_of_a_source_stand_in_its_remove() -> None:
    made = Rewritten()
    path = made.paths["y"][0]
    stats = json.dumps({"numRecords": 4, "nullCount": {"a": 0}})

    def recompute() -> None:
        made.table.builder.commit(
            [{"add": made.table.live[path] | {"stats": stats, "dataChange": False}}]
        )

    before = made.rows()
    race(made, recompute)
    assert set(fates(made.optimize()).values()) == {"committed"}
    removes = {
        action["remove"]["path"]: action["remove"]
        for action in actions_of(made.store, latest(made.store))
        if "remove" in action
    }
    assert removes[path]["stats"] == stats
    assert made.rows() == before


@pytest.mark.conformance("RW-29")
@pytest.mark.parametrize(("vectors", "fate"), [(True, "remapped"), (False, "contended")])
def test_new_files_are_written_again_a_few_times_and_vectors_more_often(
    vectors: bool, fate: str
) -> None:
    made = Rewritten(vectors=vectors)
    path = made.paths["y"][0]
    before = made.rows()
    race(
        made,
        lambda: made.table.delete(path, [0]),
        lambda: made.table.delete(path, [0, 1]),
        lambda: made.table.delete(path, [0, 1, 2]),
    )
    assert fates(made.optimize()) == {"x": "committed", "y": fate, "z": "committed"}
    assert made.rows() == without(before, 100, 101, 102)


@pytest.mark.conformance("RW-29")
def test_a_bin_that_others_never_leave_alone_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "_REMAPS", 1)
    made = Rewritten()
    path = made.paths["y"][0]
    before = made.rows()
    race(made, lambda: made.table.delete(path, [0]), lambda: made.table.delete(path, [0, 1]))
    assert fates(made.optimize()) == {"x": "committed", "y": "contended", "z": "committed"}
    assert made.rows() == without(before, 100, 101)


@pytest.mark.conformance("RW-29", "RW-30")
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("removed", [True, False])
def test_rows_that_are_deleted_and_restored_during_the_run_are_kept(
    vectors: bool, removed: bool
) -> None:
    made = Rewritten(vectors=vectors)
    path = made.paths["y"][0]
    before, original = made.rows(), made.table.live[path]

    def take_away() -> None:
        if removed:
            made.table.remove(path)
        else:
            made.table.delete(path, [0, 2])

    def restore() -> None:
        lines: list[Any] = [log.commit_info("RESTORE")]
        if path in made.table.live:
            lines.append({"remove": remove_of(made.table.live[path])})
        made.table.builder.commit([*lines, {"add": original}])

    race(made, take_away, restore)
    result = made.optimize()
    assert made.rows() == before
    assert fates(result) == dict.fromkeys("xyz", "committed")
    assert path not in live_adds(made.store)


@pytest.mark.conformance("RW-29", "TXN-03")
def test_the_state_of_the_table_replaces_information_from_earlier_commits() -> None:
    made = Rewritten()
    path = made.paths["y"][0]
    original = made.table.live[path]
    snapshot = Table(made.store).snapshot()
    adds = snapshot.live_files()
    followed = FollowedSources(snapshot, adds)
    made.table.delete(path, [0])
    moved = advance(snapshot)
    followed.take_in(moved.snapshot, moved.commits)
    assert [found.fate for found in followed.touched(adds).values()] == ["live"]
    changed = remove_of(made.table.live[path])
    made.table.builder.commit([log.commit_info("RESTORE"), {"remove": changed}, {"add": original}])
    followed.reopened(Table(made.store).snapshot())
    assert followed.touched(adds) == {}


@pytest.mark.conformance("RW-28", "META-04")
@pytest.mark.parametrize(
    ("what", "changes"),
    [
        (
            "a column of another type",
            {
                "schema": schema_string(
                    field("a", "string"), field("b", "string"), field("p", "string")
                )
            },
        ),
        (
            "a column that is gone",
            {"schema": schema_string(field("a", "long"), field("p", "string"))},
        ),
        ("another table", {"id": "another"}),
    ],
)
def test_new_files_that_no_longer_fit_are_not_committed(what: str, changes: dict[str, Any]) -> None:
    made = Rewritten(tracked=False)
    race(made, lambda: change_table(made, **_metadata(changes)))
    result = made.optimize()
    assert (result.status, set(fates(result).values())) == ("conflict", {"table-changed"}), what
    assert set(live_adds(made.store)) == set(made.table.live)
    assert result.problem


@pytest.mark.conformance("RW-28", "RT-18")
def test_row_tracking_that_is_enabled_meanwhile_voids_new_files_without_row_ids() -> None:
    made = Rewritten(tracked=False)

    def enable() -> None:
        names = ["deletionVectors", "rowTracking", "domainMetadata"]
        protocol = log.protocol(3, 7, reader_features=names[:1], writer_features=names)
        lines = [protocol, log.metadata(**_metadata({"configuration": ROW_TRACKING}))]
        lines += [
            {"add": add | {"baseRowId": 4 * at, "defaultRowCommitVersion": 4, "dataChange": False}}
            for at, add in enumerate(made.table.live.values())
        ]
        made.table.builder.commit(
            [*lines, log.domain("delta.rowTracking", json.dumps({"rowIdHighWaterMark": 47}))]
        )

    race(made, enable)
    result = made.optimize()
    assert set(fates(result).values()) == {"table-changed"}
    assert set(live_adds(made.store)) == set(made.table.live)


@pytest.mark.conformance("RW-28", "SCHEMA-07")
def test_a_column_that_is_added_meanwhile_is_null_in_new_files() -> None:
    made = Rewritten(tracked=False)
    before = made.rows()
    schema = schema_string(*SCHEMA, field("new", "long"))
    race(made, lambda: change_table(made, **_metadata({"schema": schema})))
    assert set(fates(made.optimize()).values()) == {"committed"}
    assert made.rows() == before


@pytest.mark.conformance("RW-28", "RW-39", "CLU-03")
def test_clustering_by_a_column_without_statistics_voids_new_files() -> None:
    made = Rewritten(tracked=False)
    configuration = {"delta.dataSkippingStatsColumns": "b", "delta.enableDeletionVectors": "true"}
    change_table(made, **_metadata({"configuration": configuration}))

    def cluster() -> None:
        domain = log.domain("delta.clustering", json.dumps({"clusteringColumns": [["a"]]}))
        names = ["deletionVectors", "clustering", "domainMetadata"]
        protocol = log.protocol(3, 7, reader_features=names[:1], writer_features=names)
        made.table.builder.commit([protocol, domain])

    race(made, cluster)
    result = made.optimize()
    assert set(fates(result).values()) == {"table-changed"}
    assert "statistics" in (result.problem or "")


@pytest.mark.conformance("RW-36", "TXN-02")
def test_an_answer_that_is_lost_is_settled_by_the_transaction_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Rewritten()
    before = made.rows()
    put = made.store.put_if_absent

    def lost(path: str, data: bytes) -> Put:
        found = put(path, data)
        if path.startswith(COMMIT):
            raise CommitUnknownError("the answer is lost")
        return found

    monkeypatch.setattr(made.store, "put_if_absent", lost)
    result = made.optimize()
    assert (result.status, made.rows(), result.num_commits) == ("rewritten", before, 1)


@pytest.mark.conformance("TXN-03")
def test_commits_that_a_clean_up_took_away_are_made_up_for_by_the_state() -> None:
    made = Rewritten()
    table = Table(made.store)
    planned = optimize.plan(
        table.snapshot(), OptimizeOptions(workers=1), context=RunContext.at(NOW)
    )

    def clean_up() -> None:
        made.table.remove(made.paths["y"][0])
        made.table.append(numbers(700), partitionValues={"p": "z"})
        snapshot = table.snapshot()
        checkpoint.apply(
            table, checkpoint.plan(snapshot, context=RunContext.at(NOW)), snapshot=snapshot
        )
        for version in range(snapshot.version):
            made.store.delete(f"_delta_log/{version:020d}.json")

    race(made, clean_up, before=DATA_FILE)
    result = optimize.apply(
        table, planned, context=RunContext.at(NOW, new_id=ids(), sleep=lambda _: None)
    )
    # Nobody can tell any more what became of the source that is gone.
    assert fates(result) == {"x": "committed", "y": "superseded", "z": "committed"}
    live = table.snapshot().live_files()["path"].to_pylist()
    assert set(made.paths["y"][1:]) <= set(live)
    assert not {made.paths["y"][0], *made.paths["x"], *made.paths["z"]} & set(live)


def _metadata(changes: dict[str, Any]) -> dict[str, Any]:
    plain = {"schema": schema_string(*SCHEMA), "partitioned_by": ["p"]}
    return {**plain, "configuration": {"delta.enableDeletionVectors": "true"}, **changes}
