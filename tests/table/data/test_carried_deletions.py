"""Rows that are deleted after they were read: their positions in the new files are proved."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from delta_maintenance.errors import VerificationError
from delta_maintenance.protocol.actions import DeletionVectorDescriptor
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data import carried_deletions
from delta_maintenance.table.data.bins import RewriteSpec, RewrittenBin
from delta_maintenance.table.data.carried_deletions import (
    COMPLETE,
    LateDeletions,
    late_deletions,
    prove_positions,
    write_vectors,
)
from tests.support.rewrites.data_files import field, inline_vector, parquet, put, source
from tests.table.data.test_rewrite import rewritten, spec_of

State = DeletionVectorDescriptor | str | None


def spec(*, one_file: bool = True, **changes: Any) -> RewriteSpec:
    """Without `one_file`, the rows of each source get a file of their own."""
    fields = field("a", "long"), field("s", "string")
    files = {} if one_file else {"group_bytes": 1}
    found = spec_of(*fields, tracked=True, **files)
    return replace(found, target_bytes=found.target_bytes if one_file else 1, **changes)


def vector(*positions: int) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor.from_json(inline_vector(positions))


class Made:
    """A bin of files with different rows, and its new files."""

    def __init__(self, rows: list[int], deleted: list[list[int]] | None = None, **options: Any):
        self.store = MemoryStore()
        self.spec = spec(**options)
        sources, start = [], 0
        for number, count in enumerate(rows):
            data = parquet(
                pa.table({"a": range(start, start + count), "s": [f"{number}"] * count}),
                row_group_size=3,
            )
            put(self.store, f"f{number}", data)
            gone = deleted[number] if deleted else []
            sources.append(
                source(
                    f"f{number}",
                    data,
                    rows=count,
                    deleted=gone or None,
                    base_row_id=start,
                    default_row_commit_version=number,
                )
            )
            start += count
        self.done: RewrittenBin = rewritten(self.store, sources, self.spec)

    def late(self, now: dict[int, State]) -> LateDeletions:
        found = late_deletions(self.store, self.done, now)
        assert found is not None
        return found

    def prove(self, late: LateDeletions, proved: LateDeletions | None = None) -> None:
        prove_positions(self.store, self.done, late, self.spec, proved=proved)

    def disorder(self) -> None:
        """Reverses the rows of the new file, of which the digest is still right."""
        [output] = self.done.outputs
        rows = pq.read_table(io.BytesIO(self.store.read(output.name)))
        again = parquet(rows.take(list(reversed(range(rows.num_rows)))), row_group_size=4)
        self.store.put(output.name, again)
        self.done = replace(self.done, outputs=(replace(output, size=len(again)),))


@st.composite
def states(draw: st.DrawFn) -> tuple[list[int], list[list[int]], dict[int, State], set[int]]:
    """Sizes of files, their deleted rows, what is deleted now, and the values of these rows."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    before, now, lost, start = [], dict[int, State](), set[int](), 0
    for number, size in enumerate(sizes):
        positions = st.sets(st.integers(0, size - 1), max_size=size)
        old, more = draw(positions), draw(positions)
        before.append(sorted(old))
        state = draw(st.sampled_from(["unchanged", "vector", COMPLETE]))
        late = set(range(size)) if state == COMPLETE else more
        if state != "unchanged":
            now[number] = COMPLETE if state == COMPLETE else vector(*sorted(old | more))
            lost |= {start + at for at in late - old}
        start += size
    return sizes, before, now, lost


@given(states(), st.booleans())
@settings(max_examples=150)
@pytest.mark.conformance("RW-29", "RW-30")
def test_the_new_positions_are_those_of_the_deleted_rows(case: Any, one_file: bool) -> None:
    sizes, before, now, lost = case
    made = Made(sizes, before, one_file=one_file)
    live = sum(size > len(gone) for size, gone in zip(sizes, before, strict=True))
    assert len(made.done.outputs) == (min(1, live) if one_file else live)
    late = made.late(now)
    made.prove(late)
    found = set()
    for number, places in late.by_output.items():
        rows = pq.read_table(io.BytesIO(made.store.read(made.done.outputs[number].name)))
        found |= set(rows["a"].take(pa.array(list(places))).to_pylist())
    assert found == lost


@given(states(), st.data())
@settings(max_examples=100)
@pytest.mark.conformance("RW-30")
def test_other_rows_at_these_positions_are_found(case: Any, data: st.DataObject) -> None:
    sizes, before, now, _ = case
    made = Made(sizes, before)
    late = made.late(now)
    rows = sum(run.rows for run in made.done.runs)
    chosen = [number for number, places in late.new_positions.items() if len(places) < rows]
    if not chosen:
        return
    number = data.draw(st.sampled_from(chosen))
    places = late.new_positions[number]
    free = sorted(set(range(rows)).difference(*late.new_positions.values()))
    if not free:
        return
    wrong = places - BitMap64([data.draw(st.sampled_from(list(places)))])
    wrong.add(data.draw(st.sampled_from(free)))
    with pytest.raises(VerificationError, match="the rows to delete from the new file are not"):
        made.prove(replace(late, new_positions={**late.new_positions, number: wrong}))


@pytest.mark.conformance("RW-30")
def test_a_new_file_in_another_order_is_found() -> None:
    made = Made([5, 4])
    made.disorder()
    with pytest.raises(VerificationError) as got:
        made.prove(made.late({0: vector(1)}))
    assert got.value.file == made.done.outputs[0].name
    # Without the proof of rows, nothing is read.
    made.spec = spec(proof="counts")
    made.prove(made.late({0: vector(1)}))


def test_rows_that_were_verified_are_not_read_again() -> None:
    made = Made([5, 4])
    first = made.late({0: vector(1)})
    made.prove(first)
    made.disorder()
    made.prove(first, proved=first)
    more = made.late({0: vector(1, 3)})
    with pytest.raises(VerificationError):
        made.prove(more, proved=first)


def test_only_row_groups_with_deleted_rows_are_read() -> None:
    made = Made([9, 9])
    name = made.done.bin.sources[0].path
    data = bytearray(made.store.read(name))
    group = pq.read_metadata(io.BytesIO(data)).row_group(2)
    start = group.column(0).dictionary_page_offset or group.column(0).data_page_offset
    # The third of three row groups is destroyed.
    data[start : start + 8] = b"\xff" * 8
    made.store.put(name, bytes(data))
    made.prove(made.late({0: vector(0, 5)}))


@pytest.mark.conformance("RW-30")
def test_a_vector_of_other_rows_is_found_when_it_is_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, wanted = MemoryStore(), (BitMap64([1, 5]), BitMap64([2]))
    new_id = iter(f"00000000-0000-0000-0000-{number:012}" for number in range(9)).__next__
    written = write_vectors(store, wanted, new_id=new_id)
    assert [each.cardinality for each in written] == [2, 1]
    original = carried_deletions.write_file
    # A sound file, with the right sizes and numbers of rows.
    monkeypatch.setattr(
        carried_deletions, "write_file", lambda rows: original([each.shift(1) for each in rows])
    )
    with pytest.raises(VerificationError, match="does not read back"):
        write_vectors(store, wanted, new_id=new_id)
