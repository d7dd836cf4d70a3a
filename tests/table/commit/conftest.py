"""A table for transactions."""

from __future__ import annotations

import pytest

from tests.support.logs.transactions import RacedStore
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder


@pytest.fixture
def table() -> TableBuilder:
    builder = TableBuilder(RacedStore())
    builder.commit([log.protocol(), log.metadata(), log.add("a"), log.add("b")])
    return builder
