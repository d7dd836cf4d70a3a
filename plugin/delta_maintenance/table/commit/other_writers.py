"""The settings for other writers of a table, and the commits that they forbid. Loads no pyarrow, as
Options do not.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Protocol, TypeGuard

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import RefusedError

OtherWriters = Literal["conditional_put", "spark", "none"]
"""The other writers of a table on S3: writers with conditional puts, Delta Spark, or none."""
LOG_STORE_MARK = ("delta-log-store", "conditional-put")
"""Name and value of the user metadata of commits by our log store for Delta Spark."""


def is_delta_spark(engine: object) -> TypeGuard[str]:
    """Whether a commit is by Delta Spark, to judge by its `engineInfo`."""
    return isinstance(engine, str) and engine.startswith("Apache-Spark/") and "Delta-Lake" in engine


class DeclaredWriters(Protocol):
    """Options or rules that state what is known of the other writers."""

    @property
    def other_writers(self) -> OtherWriters | None:
        """Required for tables on S3."""

    @property
    def quiet(self) -> timedelta | None:
        """With Delta Spark: how long no other writer may have committed; without, no commit."""


def guarded_window(table: str, writers: DeclaredWriters) -> timedelta | None:
    """Returns the quiet window of commits that must be guarded; None for all other tables.

    `table` is its address.
    """
    is_at_risk = writers.other_writers == "spark" and Address.parse(table).kind is StoreKind.S3
    return writers.quiet if is_at_risk else None


def require_declared_writers(table: str, writers: DeclaredWriters) -> None:
    """Raises `RefusedError` for a table on S3 with another writer that could overwrite a commit,
    unless there is a quiet window.

    `table` is its address.
    """
    on_s3 = Address.parse(table).kind is StoreKind.S3
    if not on_s3 or writers.other_writers in ("conditional_put", "none"):
        return
    if writers.other_writers is None:
        raise RefusedError(
            "the other writers of this table on S3 are not specified",
            remedy="give --other-writers conditional_put (delta-rs, Trino, Delta Spark with our "
            "log store), spark or none; in a policy, the key is other_writers",
        )
    if writers.quiet is None:
        raise RefusedError(
            "Delta Spark writes this table on S3 and could overwrite the commit",
            remedy="give --quiet, a time without commits of Delta Spark, or make the change in "
            "Spark, or give --other-writers conditional_put once Delta Spark has the log store of "
            "spark-stage --log-store (docs/safety/other-writers.md)",
        )
