"""The rules for who else needs a table: readers, kept versions and clones, as keys of a policy."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, model_validator

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.policy_values import (
    Address,
    Duration,
    PolicyModel,
    StorageRule,
)
from delta_maintenance.operations.holds.models import KeptVersion, Reader, ReaderKind, checked_name

Name = Annotated[str, Field(min_length=1, max_length=200)]


class ReaderRule(PolicyModel):
    """A reader that has not read all versions yet."""

    stream: Address | None = None
    """The address of the checkpoint folder of a Structured Streaming query. Give this,
    `change_feed`, `share` or `last_read`."""
    change_feed: Name | None = None
    """The name of a consumer of the change data feed."""
    share: Name | None = None
    """The name of a share (Delta Sharing), or of its recipient."""
    last_read: Address | None = None
    """The address of a file to which a consumer writes the last version that it has read: the
    number, or `{"version": 41, "table_id": "…"}`."""
    name: Name | None = None
    """The name of a `stream` or of a `last_read` in plans; by default its address."""
    max_lag: Duration | None = None
    """For `change_feed` and `share`: how far the reader may lag behind."""
    silent_after: Duration | None = None
    """For `stream` and `last_read`: a reader that has something to read and makes no progress for
    this long is reported."""
    when_silent: Literal["wait", "release"] = "wait"
    """Whether a silent reader is waited for, or no longer holds anything."""
    must_match: bool | None = None
    """For `stream` and `last_read`: whether it is an error if the reader is that of another table.
    By default, it is one for an entry of one table; otherwise the reader holds nothing."""
    storage: StorageRule | None = None
    """For `stream` and `last_read`: how to reach its store, if it is not that of the table."""

    @model_validator(mode="after")
    def _is_one_reader(self) -> Self:
        references = [
            reference
            for reference in (self.stream, self.change_feed, self.share, self.last_read)
            if reference is not None
        ]
        if len(references) != 1:
            raise ValueError(
                "a reader is a stream, a change_feed, a share or a last_read; give one of them"
            )
        if self.address is None:
            if self.max_lag is None:
                raise ValueError("a change_feed or a share needs max_lag")
            only = (self.silent_after, self.must_match, self.name, self.storage)
            if any(field is not None for field in only):
                raise ValueError(
                    "only a stream or a last_read has silent_after, must_match, name or storage"
                )
        elif self.max_lag is not None:
            raise ValueError("only a change_feed or a share has max_lag")
        if self.when_silent == "release" and self.silent_after is None:
            raise ValueError("when_silent: release needs silent_after")
        return self

    @property
    def address(self) -> str | None:
        """The address of a `stream` or of a `last_read`."""
        return self.stream or self.last_read

    def in_entry(self, *, of_one_table: bool) -> ReaderRule:
        """Returns the rule with the default of `must_match` for such an entry."""
        if self.address is None or self.must_match is not None:
            return self
        return self.model_copy(update={"must_match": of_one_table})

    def reader(self) -> Reader:
        """Returns the reader for the options of an operation."""
        kinds: dict[ReaderKind, str | None] = {
            "stream": self.stream,
            "change-feed": self.change_feed,
            "share": self.share,
            "last-read": self.last_read,
        }
        kind, reference = next((kind, text) for kind, text in kinds.items() if text is not None)
        return Reader(
            kind=kind,
            name=self.name or reference,
            address=self.address,
            must_match=self.must_match is not False,
            max_lag=self.max_lag,
            silent_after=self.silent_after,
            release_silent=self.when_silent == "release",
        )


def _midnight(value: object) -> object:
    """Converts a date, as YAML reads `2027-01-01`, to its first instant in UTC."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, str) and len(value) == len("2027-01-01"):
        return f"{value}T00:00:00Z"
    return value


def _name(value: str) -> str:
    try:
        return checked_name(value)
    except InvalidRequestError as error:
        raise ValueError(f"{error.problem}; {error.remedy}") from None


When = Annotated[AwareDatetime, BeforeValidator(_midnight)]
"""An instant: a date, whose first instant in UTC is meant, or a time with a zone."""


class KeepRule(PolicyModel):
    """A version that stays readable."""

    name: Annotated[str, AfterValidator(_name)]
    """Unique among the kept versions of a table."""
    version: Annotated[int, Field(ge=0)] | None = None
    """Give this or `at`."""
    at: When | None = None
    """The version that was current at this time is kept."""
    until: When | None = None
    """The end; without it, the version is kept while the policy names it."""
    why: str | None = None
    """The purpose, for people."""

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if (self.version is None) == (self.at is None):
            raise ValueError("a kept version has a version or a time; give one of them")
        return self

    def kept_version(self) -> KeptVersion:
        """Returns the kept version for the options of an operation."""
        return KeptVersion(
            name=self.name, version=self.version, timestamp=self.at, until=self.until, why=self.why
        )


class ClonesRule(PolicyModel):
    """Shallow clones of a table, for which a vacuum keeps files.

    The clones among the tables of the policy are found without a rule.
    """

    also: tuple[Address, ...] = ()
    """Addresses of clones that the policy does not look after."""
    unreadable: Literal["suspected", "block", "ignore"] = "suspected"
    """Which tables of the policy that cannot be examined stop a vacuum: those that are suspected to
    be clones, because a readable file of their log or an earlier run shows it; all (`block`), or
    none (`ignore`)."""
