"""Dags of policies, their tables, and their approvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

DAGS = Path(__file__).resolve().parents[3] / "dags"


def fresh_table(folder: Path) -> TableBuilder:
    table = TableBuilder(folder)
    table.commit([protocol(), metadata()])
    table.commit([add("a.parquet")])
    return table


@dataclass
class Somebody:
    """The user who answers a question for an approval."""

    answer: str = "Approve"
    shown: list[str] = field(default_factory=list)
    name: str = "somebody"
    given: dict[str, Any] = field(default_factory=dict)
    """The input to the form of the question."""
    meanwhile: Callable[[], object] = lambda: None
