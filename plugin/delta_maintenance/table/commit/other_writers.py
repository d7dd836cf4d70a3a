"""The setting for other writers of a table, and the commits that it forbids. Loads no pyarrow, as
Options do not.
"""

from __future__ import annotations

from typing import Literal

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import RefusedError

OtherWriters = Literal["conditional_put", "spark", "none"]
"""The other writers of a table on S3: writers with conditional puts, Delta Spark, or none."""


def require_declared_writers(table: str, other_writers: OtherWriters | None) -> None:
    """Raises `RefusedError` for a table on S3 with another writer that could overwrite a commit.

    `table` is its address.
    """
    on_s3 = Address.parse(table).kind is StoreKind.S3
    if not on_s3 or other_writers in ("conditional_put", "none"):
        return
    if other_writers == "spark":
        raise RefusedError(
            "Delta Spark writes this table on S3 and could overwrite the commit",
            remedy="give Delta Spark the log store of spark-stage --log-store and set "
            "other_writers to conditional_put (docs/concepts/other-writers.md), or make the change "
            "in Spark",
        )
    raise RefusedError(
        "the other writers of this table on S3 are not specified",
        remedy="set other_writers to conditional_put (delta-rs, Trino, Delta Spark with our log "
        "store), spark, or none",
    )
