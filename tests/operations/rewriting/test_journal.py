"""What a run takes over from an earlier one that died, and what it does not trust."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.operations import optimize
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import run
from delta_maintenance.operations.rewriting.journal import FOLDER
from delta_maintenance.table.read.table import Table
from delta_maintenance.testing import actions as log
from tests.support.rewrites.data_files import ROW_TRACKING, field, schema_string
from tests.support.rewrites.rewritten_tables import NOW, VECTORS, Rewritten
from tests.support.rewrites.table_rows import live_adds
from tests.support.suite.play import examples

Bins = list[dict[str, Any]]
VALUES = (None, True, -1, 1 << 70, 1.5, "", "x", "../x", "a\0b", [], [None], {})


class Died(BaseException):
    """The process ends."""


@pytest.fixture
def made() -> Rewritten:
    """A table with the journal of a run that died before its first commit, with three bins."""
    return left_by_a_dead_run()


def left_by_a_dead_run() -> Rewritten:
    made = Rewritten()
    put = made.store.put_if_absent

    def dies(path: str, data: bytes) -> Any:
        if path.startswith("_delta_log/"):
            raise Died
        return put(path, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "JOURNAL_EVERY", timedelta(0))
        patch.setattr(made.store, "put_if_absent", dies)
        with pytest.raises(Died):
            made.optimize()
    return made


def adopted(made: Rewritten) -> int:
    """How many bins the next run adopts; it leaves the rows of the table as they were."""
    before = made.rows()
    result = made.optimize(seed=1)
    assert result.status == "rewritten"
    assert set(result.fates) == {"committed"}
    assert made.rows() == before
    return sum(report.adopted for report in result.bins)


def swap_outputs(bins: Bins) -> None:
    bins[0]["outputs"], bins[1]["outputs"] = bins[1]["outputs"], bins[0]["outputs"]


def swap_positions(bins: Bins) -> None:
    first, second = bins[0]["runs"][:2]
    first["offset"], second["offset"] = second["offset"], first["offset"]


def lose_a_position(bins: Bins) -> None:
    bins[0]["runs"].pop()


def other_row_ids(bins: Bins) -> None:
    bins[0]["rowIds"][0][0] += 1


def repeat_a_source(bins: Bins) -> None:
    bins[0]["sources"][0] = bins[0]["sources"][1]


def mistake_a_type(bins: Bins) -> None:
    bins[0]["runs"][0]["rows"] = "4"


def mistake_a_name(bins: Bins) -> None:
    bins[0]["outputs"][0]["name"] = True


def test_an_unchanged_journal_is_adopted(made: Rewritten) -> None:
    assert adopted(made) == 3


@pytest.mark.conformance("RW-40", "RW-45")
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (swap_outputs, 1),
        (swap_positions, 2),
        (lose_a_position, 2),
        (other_row_ids, 2),
        (repeat_a_source, 2),
        (mistake_a_type, 2),
        (mistake_a_name, 2),
    ],
)
def test_bins_that_the_journal_describes_wrongly_are_rewritten(
    made: Rewritten, change: Callable[[Bins], None], left: int
) -> None:
    [status] = made.store.list_from(FOLDER)
    document = json.loads(made.store.read(status.path))
    change(document["bins"])
    made.store.put(status.path, json.dumps(document).encode())
    assert adopted(made) == left


@pytest.mark.conformance("RW-40")
@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"7", b"[]", b'"x"'])
def test_an_unreadable_journal_is_ignored(made: Rewritten, data: bytes) -> None:
    [status] = made.store.list_from(FOLDER)
    made.store.put(status.path, data)
    assert adopted(made) == 0
    assert list(made.store.list_from(FOLDER)) == []


@pytest.mark.conformance("RW-40")
@settings(max_examples=examples(60))
@given(st.randoms(use_true_random=False), st.sampled_from(VALUES))
def test_any_other_value_in_a_journal_fails_no_run(dice: Random, value: object) -> None:
    made = left_by_a_dead_run()
    [status] = made.store.list_from(FOLDER)
    document = json.loads(made.store.read(status.path))
    place, key = dice.choice(list(places(document)))
    place[key] = value
    made.store.put(status.path, json.dumps(document).encode())
    adopted(made)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container within a document, with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@pytest.mark.conformance("RW-22", "RW-40")
@pytest.mark.parametrize("proof", ["rows", "counts"])
def test_statistics_and_times_come_from_the_files_and_not_from_the_journal(
    made: Rewritten, proof: str
) -> None:
    [status] = made.store.list_from(FOLDER)
    document = json.loads(made.store.read(status.path))
    outputs = [output for entry in document["bins"] for output in entry["outputs"]]
    true = {output["name"]: (output["stats"], output["modified_ms"]) for output in outputs}
    for output in outputs:
        # A reader would skip the file for most of its rows.
        output["stats"] = output["stats"].replace('"maxValues":{"a":', '"maxValues":{"a":-')
        assert output["stats"] != true[output["name"]][0]
        output["modified_ms"] += 1
    made.store.put(status.path, json.dumps(document).encode())
    assert made.optimize(seed=1, proof=proof).status == "rewritten"
    committed = live_adds(made.store)
    found = {name: (add["stats"], add["modificationTime"]) for name, add in committed.items()}
    assert found == true


@pytest.mark.conformance("RW-45")
@pytest.mark.parametrize(("retention", "bins"), [("1 hours", 0), ("2 hours", 3)])
def test_files_that_a_vacuum_may_delete_soon_are_not_adopted(
    made: Rewritten, retention: str, bins: int
) -> None:
    schema = schema_string(field("a", "long"), field("b", "string"), field("p", "string"))
    kept = {"delta.deletedFileRetentionDuration": f"interval {retention}"}
    configuration = ROW_TRACKING | VECTORS | kept
    made.table.builder.commit(
        [log.metadata(schema=schema, partitioned_by=["p"], configuration=configuration)]
    )
    snapshot = Table(made.store).snapshot()
    options = OptimizeOptions(workers=1)
    planned = optimize.plan(snapshot, options, context=RunContext.at(NOW + timedelta(minutes=40)))
    assert planned.adopted_bins == bins
