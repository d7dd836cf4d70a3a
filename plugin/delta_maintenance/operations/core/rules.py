"""What the rules of all operations in a policy have in common.

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
    """Base of the rule of one operation: when it is due, and how it is set up."""

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
    """Bytes of log; by default what each operation thinks right."""
    spark_files: Annotated[int, Field(ge=0)] | None = None
    """Files to be opened; by default what each operation thinks right."""


class Limits(PolicyModel):
    """What ends the run of one table before it goes too far."""

    max_deleted_files: Annotated[int, Field(ge=0)] | None = None
    """Files that one operation may delete."""
    max_deleted_bytes: Bytes | None = None
    """Bytes that one operation may delete."""
    max_deleted_share: Share | None = 0.5
    """Of the live files and those to go, once more than 1,000 are to go."""
    max_duration: Duration | None = None
    """After which no further operation begins; one under way is not interrupted."""
    max_commits: Annotated[int, Field(ge=0)] | None = None
    """Commits that one run may add to the table."""


class RulesInForce(Protocol):
    """The rules of one table, as far as operations look at them."""

    @property
    def engine(self) -> EngineRule:
        """Where the work is done."""

    @property
    def limits(self) -> Limits:
        """What ends a run before it goes too far."""

    @property
    def other_writers(self) -> OtherWriters | None:
        """Who else commits to a table on S3."""

    def value(self, key: str) -> object:
        """What stands under the key of an operation; None where nothing does."""
