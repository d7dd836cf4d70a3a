"""Row IDs for new files are unique, dense and within 64 bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.commit import staged_adds
from delta_maintenance.protocol.row_tracking.row_ids import assign_row_ids
from tests.support.tables.actions import add

HIGHEST = 2**63 - 1


def files(*rows: int) -> list[dict[str, object]]:
    return [add(f"f{n}", stats=f'{{"numRecords":{count}}}')["add"] for n, count in enumerate(rows)]


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=8), st.integers(-1, HIGHEST - 8 * 2**40)
)
def test_files_get_adjacent_ranges_above_the_mark(rows: list[int], mark: int) -> None:
    adds, after = assign_row_ids(staged_adds(files(*rows)), high_water_mark=mark, version=7)
    bases = adds["baseRowId"].to_pylist()
    assert bases[0] == mark + 1
    for base, count, following in zip(bases, rows, [*bases[1:], after + 1], strict=True):
        assert base + count == following
    assert adds["defaultRowCommitVersion"].to_pylist() == [7] * len(rows)


@pytest.mark.parametrize(
    ("mark", "rows"),
    [(HIGHEST - 9, (10,)), (HIGHEST, (1,)), (-1, (HIGHEST, 2)), (0, (HIGHEST, HIGHEST, 3))],
)
def test_row_ids_above_64_bits_are_refused(mark: int, rows: tuple[int, ...]) -> None:
    with pytest.raises(RefusedError, match="64 bits"):
        assign_row_ids(staged_adds(files(*rows)), high_water_mark=mark, version=1)


def test_the_largest_row_id_can_be_assigned() -> None:
    adds, mark = assign_row_ids(staged_adds(files(10)), high_water_mark=HIGHEST - 10, version=1)
    assert adds["baseRowId"].to_pylist() == [HIGHEST - 9]
    assert mark == HIGHEST
