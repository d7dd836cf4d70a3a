"""The location of the corpus of real tables, and its tables."""

from __future__ import annotations

import os
from pathlib import Path

CORPUS = Path(
    os.environ.get("DELTA_MAINTENANCE_CORPUS", Path(__file__).parents[4] / "shared" / "tables")
)
TABLES = sorted(path.stem for path in (CORPUS / "expected").glob("*.json"))
"""The names of its tables; empty if the corpus is absent."""
