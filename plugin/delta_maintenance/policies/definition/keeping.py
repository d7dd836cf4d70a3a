"""The rules for what must stay: kept versions and clones, as keys of a policy."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, model_validator

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.policy_values import Address, PolicyModel
from delta_maintenance.operations.holds.kept_names import checked_name
from delta_maintenance.operations.holds.options import KeptVersion


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
            name=self.name,
            version=self.version,
            timestamp=self.at,
            until=self.until,
            why=self.why,
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
