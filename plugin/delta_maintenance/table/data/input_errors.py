"""The errors of data files that cannot be read."""

from __future__ import annotations

import pyarrow as pa

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.schema.types import ColumnMappingMode


def require_column_ids(schema: pa.Schema, mode: ColumnMappingMode) -> None:
    """Raises `CorruptTableError` if columns are found by ID and the file contains no IDs."""
    if mode == "id" and not any(b"PARQUET:field_id" in (field.metadata or {}) for field in schema):
        raise CorruptTableError("the data file contains no column IDs, which reading requires")


def reading_error(error: Exception, *, file: str) -> DeltaMaintenanceError:
    """Converts an error of Arrow, or of the file that it reads, to an error about a data file.

    A file that Arrow does not support is not damaged.
    """
    text = " ".join(str(error).split())[:300]
    if isinstance(error, FileNotFoundError):
        remedy = "see with fsck what else is missing"
        return CorruptTableError("the data file is gone", file=file, remedy=remedy)
    problem = f"the data file cannot be read ({text})"
    if "encrypt" in text.lower():
        remedy = "rewrite it with an engine that has its keys"
        return UnsupportedFeatureError("the data file is encrypted", file=file, remedy=remedy)
    # Columns that the table has dropped can be deeper than its schema.
    if isinstance(error, pa.ArrowNotImplementedError) or "too deeply nested" in text:
        remedy = "rewrite the file with the engine that wrote it"
        return UnsupportedFeatureError(problem, file=file, remedy=remedy)
    return CorruptTableError(problem, file=file)
