"""Fields that the policy rules of all operations share.

The model of each operation is beside its code; this module contains its base class, and the rules
that apply to all operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self

from pydantic import Field

from delta_maintenance.operations.core.policy_values import Bytes, Duration, PolicyModel, Share
from delta_maintenance.operations.holds.models import Holders
from delta_maintenance.table.commit.other_writers import OtherWriters

if TYPE_CHECKING:
    from delta_maintenance.table.read.snapshot import Snapshot


_OWN_SHARE = 0.5
"""The share of all files from which on vacuum itself refuses."""


class Rule(PolicyModel):
    """Base class of the rule for one operation: when it is due, and its settings."""

    def at_once(self) -> Self:
        """Returns the rule changed so that the operation is due now."""
        if "every" not in type(self).model_fields:
            return self
        return self.model_copy(update={"every": timedelta()})

    def promised(self, snapshot: Snapshot) -> Mapping[str, timedelta]:
        """Returns the least retentions of a table, by the names of the operation's options."""
        return {}


class EngineRule(PolicyModel):
    """The engine that does the work."""

    prefer: Literal["auto", "local", "spark"] = "auto"
    """`auto` uses Spark from the sizes below on."""
    spark_log_bytes: Bytes | None = None
    """The bytes of log from which on Spark is used; by default, each operation has its own
    limit.
    """
    spark_data_bytes: Bytes | None = None
    """The bytes of data files to rewrite from which on Spark is used; by default, each operation
    has its own limit.
    """
    spark_files: Annotated[int, Field(ge=0)] | None = None
    """The number of files to open from which on Spark is used; by default, each operation has its
    own limit.
    """


class Limits(PolicyModel):
    """Limits that end the run on one table."""

    max_deleted_files: Annotated[int, Field(ge=0)] | None = None
    """The maximum number of files that one operation may delete."""
    max_deleted_bytes: Bytes | None = None
    """The maximum number of bytes that one operation may delete."""
    max_deleted_share: Share | None = 0.5
    """The maximum share of deleted files among these and the live files; applies if more than 1,000
    files would be deleted.
    """
    max_duration: Duration | None = None
    """The time after which no further operation begins; a running one is not interrupted."""
    max_commits: Annotated[int, Field(ge=0)] | None = None
    """The maximum number of commits that one run may add to the table."""

    @property
    def limits_deletions_further(self) -> bool:
        """Whether there are limits on deletions in addition to those of vacuum itself."""
        share = self.max_deleted_share
        return (
            self.max_deleted_files is not None
            or self.max_deleted_bytes is not None
            or (share is not None and share < _OWN_SHARE)
        )


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

    @property
    def quiet(self) -> timedelta | None:
        """How long no other writer may have committed."""

    @property
    def holders(self) -> Holders:
        """What holds versions and files."""

    def value(self, key: str) -> object:
        """The value of the key of an operation; None if the key is absent."""
