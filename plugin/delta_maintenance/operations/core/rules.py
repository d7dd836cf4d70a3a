"""Fields that the policy rules of all operations share.

Each operation has its own small model, beside its code; this is their base, and the rules that are
about every operation alike.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field

from delta_maintenance.operations.core.policy_values import Bytes, Duration, PolicyModel, Share
from delta_maintenance.table.commit.other_writers import OtherWriters


class Rule(PolicyModel):
    """Base of the rule for one operation: when it is due, and its settings."""

    def at_once(self) -> Self:
        """The rule as it would be if the operation were due now."""
        if "every" not in type(self).model_fields:
            return self
        return self.model_copy(update={"every": timedelta()})


class EngineRule(PolicyModel):
    """Where the work is done."""

    prefer: Literal["auto", "local", "spark"] = "auto"
    """`auto` takes Spark from the sizes below on."""
    spark_log_bytes: Bytes | None = None
    """Bytes of log; by default, each operation has its own limit."""
    spark_data_bytes: Bytes | None = None
    """Bytes of data files to rewrite; by default, each operation has its own limit."""
    spark_files: Annotated[int, Field(ge=0)] | None = None
    """Files to open; by default, each operation has its own limit."""


class Limits(PolicyModel):
    """Limits that end the run on one table."""

    max_deleted_files: Annotated[int, Field(ge=0)] | None = None
    """Files that one operation may delete."""
    max_deleted_bytes: Bytes | None = None
    """Bytes that one operation may delete."""
    max_deleted_share: Share | None = 0.5
    """Share of live files and files to delete; applies to more than 1,000 files to delete."""
    max_duration: Duration | None = None
    """After which no further operation begins; one under way is not interrupted."""
    max_commits: Annotated[int, Field(ge=0)] | None = None
    """Commits that one run may add to the table."""


class RulesInForce(Protocol):
    """The rules of one table that operations read."""

    @property
    def engine(self) -> EngineRule:
        """Where the work is done."""

    @property
    def limits(self) -> Limits:
        """Limits that end a run."""

    @property
    def other_writers(self) -> OtherWriters | None:
        """The other writers of a table on S3."""

    def value(self, key: str) -> object:
        """The value of the key of an operation; None if the key is absent."""
