"""`fsck --deep` finds row IDs that belong to two live rows, wherever they are stored."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions, examination, plan
from delta_maintenance.operations.fsck.checks import row_ids as check_row_ids
from delta_maintenance.table.read import Table
from tests.support.rewrites.repeated_row_ids import stored
from tests.support.rewrites.rewritten_tables import NOW, Rewritten


def found(made: Rewritten, *, deep: bool = True, engine: Any = None) -> Any:
    options = FsckOptions(deep=deep)
    return plan(
        Table(made.store), options, context=RunContext.at(NOW + timedelta(days=1), engine=engine)
    )


def repetitions(planned: Any) -> dict[str | None, str]:
    """The findings of repeated row IDs, by path."""
    return {
        finding.path: finding.problem
        for finding in planned.findings
        if finding.kind == "repeated-row-id"
    }


@pytest.mark.conformance("RT-19", "RT-16")
def test_row_ids_stay_unique_through_rewrites_and_deletions() -> None:
    made = Rewritten()
    assert not repetitions(found(made))
    made.table.delete(made.paths["y"][1], [1, 3])
    made.optimize()
    assert not repetitions(found(made))


@pytest.mark.conformance("RT-19")
@pytest.mark.parametrize(
    ("ids", "repeated"),
    [
        ([1000, 1001], None),
        ([1000, 1000], 1000),
        ([1000, 5], 5),
        ([None, 5], 5),
        ([None, None], None),
    ],
)
def test_a_stored_row_id_of_another_row_is_found(
    ids: list[int | None], repeated: int | None
) -> None:
    made = Rewritten()
    [path] = made.table.append(stored(ids), partitionValues={"p": "x"})
    named = repetitions(found(made))
    if repeated is None:
        assert not named
    else:
        # The row ID 5 is that of a row in the second file, and files have no order.
        [(name, problem)] = named.items()
        assert name in (path, made.paths["x"][1])
        assert problem == f"another row also has the row ID {repeated}"
    assert not repetitions(found(made, deep=False))


@pytest.mark.conformance("RT-19")
@pytest.mark.parametrize("deleted", [True, False])
def test_an_updated_row_keeps_the_row_id_of_its_deleted_predecessor(deleted: bool) -> None:
    made = Rewritten()
    path = made.paths["x"][1]
    base = made.table.live[path]["baseRowId"]
    if deleted:
        made.table.delete(path, [2])
    made.table.append(stored([base + 2]), partitionValues={"p": "x"})
    assert bool(repetitions(found(made))) == (not deleted)


def test_files_that_were_not_compared_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Rewritten()
    made.table.append(stored([3, 5]), partitionValues={"p": "x"})
    note = "the row IDs in {} data files were not compared with those of others"
    assert not [text for text in found(made).notes if "row IDs" in text]
    monkeypatch.setattr(check_row_ids, "MOST_RANGES", 1)
    monkeypatch.setattr(check_row_ids, "_PARTS_PER_BLOCK", 8)
    assert note.format(5) in found(made).notes
    monkeypatch.undo()
    # Engines of users may open files without reading row IDs.
    assert note.format(13) in found(made, engine=lambda *_, **__: None).notes
    made.store.put(made.paths["x"][0], b"no Parquet file")
    assert note.format(1) in found(made).notes


def test_tables_without_row_tracking_are_not_read_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(examination, "check_row_ids")
    assert not found(Rewritten(tracked=False)).notes
