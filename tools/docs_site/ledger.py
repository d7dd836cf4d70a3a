"""The columns of the ledger, from its schema."""

from __future__ import annotations

from delta_maintenance.ledger.rows import COLUMNS
from docs_site.markdown import code, sentence, table

_TYPES = {"metrics": "map<string, long>"}


def columns(_: str) -> str:
    """Every column with its type and its meaning."""
    rows = [(code(c.name), _TYPES.get(c.kind, c.kind), sentence(c.comment)) for c in COLUMNS]
    return table(("column", "type", "meaning"), rows)
