"""A table for transactions."""

from __future__ import annotations

import pytest
from logs.transactions import RacedStore

from delta_maintenance.testing import actions as log
from delta_maintenance.testing.table_builder import TableBuilder


@pytest.fixture
def table() -> TableBuilder:
    builder = TableBuilder(RacedStore())
    builder.commit([log.protocol(), log.metadata(), log.add("a"), log.add("b")])
    return builder
