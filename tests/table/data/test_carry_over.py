"""Positions of deleted rows in new files, whatever the windows in which they are computed."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from delta_maintenance.table.data import deleted_rows
from delta_maintenance.table.data.deleted_rows import carry_over, newly_deleted

positions = st.sets(st.integers(0, 40) | st.integers(1000, 1040))


@given(positions, positions, st.integers(0, 9), st.integers(1, 16))
def test_each_row_moves_by_the_rows_deleted_before_it(
    read: set[int], later: set[int], offset: int, together: int
) -> None:
    gone = newly_deleted(BitMap64(read), BitMap64(read | later))
    assert gone is not None and set(gone) == later - read
    expected = {row - sum(other < row for other in read) + offset for row in gone}
    with mock.patch.object(deleted_rows, "_TOGETHER", together):
        places = carry_over(gone, read=BitMap64(read), offset=offset, live=1041 - len(read))
    assert places is not None and set(places) == expected
    last = max(expected, default=offset) - offset
    outside = carry_over(gone, read=BitMap64(read), offset=offset, live=last)
    assert (outside is None) == bool(gone)


@given(positions, positions)
def test_restored_rows_are_noticed(read: set[int], now: set[int]) -> None:
    assert (newly_deleted(BitMap64(read), BitMap64(now)) is None) == (not read <= now)
