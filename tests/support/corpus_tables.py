"""Where the corpus of real tables is, and which tables it holds."""

from __future__ import annotations

import os
from pathlib import Path

CORPUS = Path(
    os.environ.get("DELTA_MAINTENANCE_CORPUS", Path(__file__).parents[3] / "shared" / "tables")
)
TABLES = sorted(path.stem for path in (CORPUS / "expected").glob("*.json"))
"""The names of its tables; none where the corpus is absent."""
