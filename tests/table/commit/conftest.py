"""A table for transactions."""

from __future__ import annotations

import pytest

from delta_maintenance.testing import actions as log
from delta_maintenance.testing.table_builder import TableBuilder
from tests.support.logs.transactions import RacedStore


@pytest.fixture
def table() -> TableBuilder:
    builder = TableBuilder(RacedStore())
    builder.commit([log.protocol(), log.metadata(), log.add("a"), log.add("b")])
    return builder
