"""Types of statistics, and single values in both forms."""

from __future__ import annotations

import pyarrow as pa

INSTANT = pa.timestamp("us", "UTC")
LOCAL = pa.timestamp("us")


def struct(**members: pa.DataType) -> pa.StructType:
    return pa.struct(list(members.items()))
