"""The rule of an operation in a policy, and the rules that all operations share.

The model of each operation is beside its code and declares when it is due. The options that a
policy can set are declared once, in the Options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self

from pydantic import ConfigDict, Field, create_model

from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.flags import FlagField, flag_fields
from delta_maintenance.operations.core.policy_values import Bytes, Duration, PolicyModel, Share
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.holds.models import Holders
from delta_maintenance.table.commit.other_writers import OtherWriters

if TYPE_CHECKING:
    from delta_maintenance.table.read.snapshot import Snapshot


_OWN_SHARE = 0.5
"""The share of all files from which on vacuum itself refuses."""


class Rule(PolicyModel):
    """Base class of the rule for one operation: when it is due, and its settings."""

    # Only the classes that `with_options` returns read values.
    model_config = ConfigDict(defer_build=True)

    def at_once(self) -> Self:
        """Returns the rule changed so that the operation is due now, because a person asks."""
        changed = {"every": timedelta(), "approval": False}
        fields = type(self).model_fields
        return self.model_copy(update={name: changed[name] for name in changed if name in fields})

    def promised(self, snapshot: Snapshot) -> Mapping[str, timedelta]:
        """Returns the least retentions of a table, by the names of the operation's options."""
        return {}


def with_options(rule: type[Rule], options: Iterable[type[Record]]) -> type[Rule]:
    """Adds a key for each option that a policy can set, with the type, the bounds, the default and
    the text of the option; a key that the rule declares itself is not changed.
    """
    keys: dict[str, Any] = {
        field.name: (
            Annotated[_type_of_key(field), field.flag],
            ... if field.is_required else field.default,
        )
        for kind in options
        for field in flag_fields(kind)
        if field.flag.in_policy and field.name not in rule.model_fields
    }
    return create_model(
        rule.__name__,
        __base__=rule,
        __module__=rule.__module__,
        __doc__=rule.__doc__,
        # The new keys have no docstrings, and looking for them takes longer than all else here.
        __cls_kwargs__={"use_attribute_docstrings": False, "defer_build": False},
        **keys,
    )


def _type_of_key(field: FlagField) -> Any:
    kind: Any = field.kind if field.bounds is None else Annotated[field.kind, field.bounds]
    if field.kind is timedelta:
        kind = Duration
    elif field.is_size:
        kind = Bytes
    return kind | None if field.may_be_none else kind


class EngineRule(PolicyModel):
    """The engine that does the work, and the sizes from which on `auto` uses Spark."""

    prefer: flags.Engine = "auto"
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
