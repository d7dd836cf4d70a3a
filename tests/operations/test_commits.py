"""Has the table moved, and how far is its checkpoint behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import NotADeltaTableError
from delta_maintenance.operations.commits import CheckpointLag, checkpoint_lag, latest_version
from delta_maintenance.testing.actions import add, metadata, protocol
from delta_maintenance.testing.table_builder import TableBuilder


def table_of(version: int) -> TableBuilder:
    table = TableBuilder()
    table.commit([protocol(), metadata()])
    for number in range(version):
        table.commit([add(str(number))])
    return table


@settings(deadline=None)
@given(st.integers(0, 12), st.data())
def test_the_answers_agree_with_a_snapshot(version: int, data: st.DataObject) -> None:
    table = table_of(version)
    checkpoint = data.draw(st.none() | st.integers(0, version))
    if checkpoint is not None:
        table.checkpoint(checkpoint)
        if data.draw(st.booleans()):
            table.hint(checkpoint)
    known = data.draw(st.none() | st.integers(0, version + 3))
    opened = table.open()
    assert latest_version(opened, known=known) == opened.snapshot().version == version
    lag = checkpoint_lag(opened)
    assert (lag.version, lag.checkpoint_version) == (version, checkpoint)
    assert lag.commits == len(opened.snapshot().segment.commits)


def test_a_hint_to_a_checkpoint_that_is_gone_costs_a_listing_not_the_answer() -> None:
    table = table_of(8)
    table.checkpoint(2)
    table.hint(6)
    lag = checkpoint_lag(table.open())
    assert lag == CheckpointLag(table=table.open().uri, version=8, checkpoint_version=2)
    assert lag.commits == 6


def test_a_hint_beyond_the_log_is_not_believed() -> None:
    table = table_of(3)
    table.hint(9)
    assert latest_version(table.open()) == 3
    assert checkpoint_lag(table.open()).commits == 4


def test_no_table_is_an_error_that_names_the_address() -> None:
    table = TableBuilder().open()
    for ask in (latest_version, checkpoint_lag):
        with pytest.raises(NotADeltaTableError) as caught:
            ask(table)
        assert caught.value.table == table.uri
