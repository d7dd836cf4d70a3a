"""Column mapping is dropped together with the physical names in data files."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.operations import drop_feature
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.features import supported_features
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.mapped_tables import (
    HIGHEST,
    ID,
    MODE,
    NAME,
    expected,
    identities,
    mapped,
    mapped_rows,
    mapped_table,
    rows,
    struct,
    unmapped_rows,
)
from tests.support.rewrites.rewritten_tables import RacedRewrites
from tests.support.rewrites.table_rows import Action, actions_of, latest, live_adds
from tests.support.tables.droppable_tables import Clock, drop, planned

OPERATION = "REMOVE COLUMN MAPPING"
FEATURE = "columnMapping"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def removal(store: Store) -> list[Action]:
    """The actions of the one commit that removed the mapping."""
    found = []
    for version in range(latest(store) + 1):
        actions = actions_of(store, version)
        if any(action.get("commitInfo", {}).get("operation") == OPERATION for action in actions):
            found.append(actions)
    assert len(found) == 1
    return found[0]


def named(actions: list[Action], name: str) -> list[Any]:
    return [action[name] for action in actions if name in action]


def paths_in(store: Store) -> set[str]:
    return {path for batch in store.list_tree() for path in batch["path"].to_pylist()}


@pytest.mark.conformance("RW-38", "FEAT-14", "FEAT-15", "CM-03", "CLU-03", "RT-15", "RT-18")
@pytest.mark.parametrize("mode", ["name", "id"])
def test_all_files_get_logical_names_in_the_commit_that_removes_the_mapping(
    mode: str, clock: Clock
) -> None:
    made = mapped_table(mode=mode)
    clock.govern(made.store)
    first, second = made.append(rows(0), rows(10), partitionValues={"c6": "x"})
    made.append(rows(20), partitionValues={"c6": None})
    made.delete(second, [1, 2])
    before, ids = mapped_rows(made.store), identities(made.store)
    assert before[3] == expected(0, "x")[3] and before[23] == expected(20, None)[23]

    plan = planned(made.store, clock, FEATURE)
    [step] = [step for step in plan.steps if step.kind == "remove-mapping"]
    assert step.commits == 1 and "3 data files" in step.detail
    told: list[tuple[Any, ...]] = []
    result = drop_feature.apply(
        Table(made.store),
        plan,
        context=RunContext.at(
            clock, progress=lambda *report, unit="count": told.append((*report, unit))
        ),
    )
    assert result.status == "dropped"
    assert told[-1][0] == "bytes rewritten" and told[-1][1] == told[-1][2]
    assert {unit for *_, unit in told} == {"bytes"}

    assert unmapped_rows(made.store) == before
    assert identities(made.store) == ids
    actions = removal(made.store)
    [metadata], [info] = named(actions, "metaData"), named(actions, "commitInfo")
    adds, removes = named(actions, "add"), named(actions, "remove")
    assert {remove["path"] for remove in removes} >= {first, second} and len(removes) == 3
    assert {json.dumps(remove["partitionValues"]) for remove in removes} == {
        '{"c6": "x"}',
        '{"c6": null}',
    }
    assert [add["partitionValues"] for add in adds] == [{"part": None}, {"part": "x"}]
    assert not any(action["dataChange"] for action in (*adds, *removes))
    assert "columnMapping" not in metadata["schemaString"]
    assert MODE not in metadata["configuration"] and HIGHEST not in metadata["configuration"]
    assert metadata["configuration"]["user.own"] == "1"
    domains = {each["domain"]: each["configuration"] for each in named(actions, "domainMetadata")}
    assert json.loads(domains["delta.clustering"]) == {
        "clusteringColumns": [["number"], ["inner", "deep"]],
        "other": 1,
    }
    for add in adds:
        stats = json.loads(add["stats"])
        assert set(stats["minValues"]) == {"number", "inner", "text", "c7"}
        assert "deep" in stats["nullCount"]["inner"]
        footer = pq.read_schema(pa.BufferReader(made.store.read(add["path"])))
        assert footer.names[:6] == ["number", "inner", "pairs", "text", "c7", footer.names[5]]
        assert b"field_id" not in repr(footer.to_string(show_field_metadata=True)).encode()
    assert info["isolationLevel"] == "Serializable" and info["isBlindAppend"] is False
    assert info["tags"]["delta.rowTracking.preserved"] == "true"
    assert info["operationMetrics"] == {
        "numRewrittenFiles": "3",
        "numCopiedRows": "10",
        "numDeletionVectorsRemoved": "1",
        "numOutputBytes": str(sum(add["size"] for add in adds)),
        "numRemovedBytes": str(sum(remove["size"] for remove in removes)),
    }
    snapshot = Table(made.store).snapshot()
    assert FEATURE not in supported_features(snapshot.protocol)
    assert planned(made.store, clock, FEATURE).is_noop


def renamed_never(
    clock: Clock, *, highest: int = 2, mode: str = "name", columns: tuple[str, ...] = ("a", "b")
) -> DataTable:
    """A table that was upgraded to a mapping and whose columns were never renamed."""
    made = DataTable(
        *(mapped(name, "long", number, name) for number, name in enumerate(columns, 1)),
        store=RacedRewrites(),
        features=[FEATURE],
        configuration={MODE: mode, HIGHEST: str(highest)},
    )
    clock.govern(made.store)
    return made


def numbers(*names: str, ids: bool = False) -> pa.Table:
    fields = [
        pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(at)} if ids else None)
        for at, name in enumerate(names, 1)
    ]
    return pa.table([pa.array([1, 2])] * len(names), schema=pa.schema(fields))


@pytest.mark.conformance("RW-38", "FEAT-14")
@pytest.mark.parametrize("mode", ["name", "id"])
def test_only_metadata_change_where_all_names_coincide(mode: str, clock: Clock) -> None:
    made = renamed_never(clock, mode=mode)
    made.append(numbers("a", "b", ids=mode == "id"), numbers("b", ids=False).rename_columns(["a"]))
    if mode == "id":
        made.remove("f00001.parquet")
    before = live_adds(made.store)
    [step] = [s for s in planned(made.store, clock, FEATURE).steps if s.kind == "remove-mapping"]
    assert "no data file changes" in step.detail
    assert drop(made.store, clock, FEATURE).status == "dropped"
    actions = removal(made.store)
    assert not named(actions, "add") and not named(actions, "remove")
    assert live_adds(made.store) == before
    assert ID not in named(actions, "metaData")[0]["schemaString"]


@pytest.mark.conformance("RW-38", "CM-05")
@pytest.mark.parametrize(
    ("mode", "stored"),
    [
        # A column that was dropped: another one may get its name later.
        ("name", numbers("a", "b", "dropped")),
        # Written under other names, and found by its ID.
        ("id", numbers("a", "other", ids=True)),
    ],
)
def test_of_files_with_logical_names_only_those_with_others_are_rewritten(
    mode: str, stored: pa.Table, clock: Clock
) -> None:
    made = renamed_never(clock, highest=3, mode=mode)
    kept, other = made.append(numbers("a", "b", ids=True), stored)
    assert drop(made.store, clock, FEATURE).status == "dropped"
    actions = removal(made.store)
    assert [remove["path"] for remove in named(actions, "remove")] == [other]
    assert kept in live_adds(made.store)
    [add] = named(actions, "add")
    found = pq.read_table(pa.BufferReader(made.store.read(add["path"])))
    assert found.to_pydict() == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.conformance("RW-38")
def test_a_footer_that_cannot_be_read_keeps_the_mapping(clock: Clock) -> None:
    made = renamed_never(clock, highest=3)
    [path] = made.append(numbers("a", "b"))
    made.store.delete(path)
    with pytest.raises(CorruptTableError, match=path):
        drop(made.store, clock, FEATURE)
    assert FEATURE in supported_features(Table(made.store).snapshot().protocol)


@pytest.mark.conformance("RW-38", "FEAT-14")
def test_a_mode_that_was_switched_off_leaves_only_names_in_the_schema(clock: Clock) -> None:
    made = DataTable(
        mapped("a", "long", 1, "old"), features=[FEATURE], configuration={MODE: "none"}
    )
    clock.govern(made.store)
    made.append(numbers("a"))
    assert drop(made.store, clock, FEATURE).status == "dropped"
    assert not named(removal(made.store), "add")


@pytest.mark.conformance("RW-38", "RW-03")
@pytest.mark.parametrize("character", " ,;{}()\n\t=")
def test_a_name_that_needs_the_mapping_is_refused_before_anything_is_written(
    character: str, clock: Clock
) -> None:
    made = DataTable(
        field("plain", "long", **{ID: 1, NAME: "c1"}),
        mapped("s", struct(mapped(f"a{character}b", "long", 3, "c3")), 2, "c2"),
        features=[FEATURE],
        configuration={MODE: "name", HIGHEST: "3"},
    )
    before = paths_in(made.store)
    with pytest.raises(RefusedError, match="only allowed with column mapping") as error:
        planned(made.store, clock, FEATURE)
    assert "\n" not in str(error.value)
    assert paths_in(made.store) == before


@pytest.mark.conformance("RW-38", "RW-15")
def test_a_damaged_file_keeps_the_mapping_and_is_named(clock: Clock) -> None:
    made = mapped_table()
    clock.govern(made.store)
    made.append(rows(0), partitionValues={"c6": "x"})
    [path] = made.append(rows(10), partitionValues={"c6": "y"})
    made.store.put(path, made.store.read(path)[:-20])
    with pytest.raises(CorruptTableError, match=path):
        drop(made.store, clock, FEATURE)
    assert MODE in Table(made.store).snapshot().metadata.configuration
