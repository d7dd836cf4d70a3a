"""What only newer versions of PyArrow have, for files that tests write."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.table.data import writes_bloom_filters

IS_24 = pa.__version__.startswith("24.")
"""Whether it is the oldest supported version, which writes no lists of views, and states the
greatest finite number as the lower bound of a column of infinities."""
needs_bloom_filters = pytest.mark.skipif(
    not writes_bloom_filters(), reason=f"NO BLOOM FILTERS: PyArrow {pa.__version__} has none"
)


def bloom_filter(column: str) -> dict[str, Any]:
    """Options for bloom filters of a column, if there are any."""
    return {"bloom_filter_options": {column: True}} if writes_bloom_filters() else {}
