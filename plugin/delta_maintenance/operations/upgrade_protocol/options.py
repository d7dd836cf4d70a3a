"""What a table is to support, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.table_change.options import (
    ChangeOptions,
    ChangePlan,
    ChangeResult,
    ProtocolVersions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeProtocolOptions(ChangeOptions):
    """What the table is to support."""

    features: Annotated[
        tuple[str, ...],
        Flag(
            name="--feature",
            metavar="NAME",
            help="a table feature, by its name in the protocol; repeatable",
        ),
    ] = ()
    """By the names of the protocol; what they require comes along."""
    reader_version: Annotated[int | None, Flag(help="support what reader version N implies")] = None
    """What it implies is to be supported."""
    writer_version: Annotated[int | None, Flag(help="support what writer version N implies")] = None
    """What it implies is to be supported."""
    convert_draft: Annotated[
        bool,
        Flag(
            help="convert what is left of a draft of row tracking of 2023 to today's: the "
            "high-water mark moves into its domain, and maps that stand for the text of a domain "
            "become text"
        ),
    ] = False
    """Whether what is left of a draft of row tracking of 2023 is converted to today's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeProtocolPlan(ChangePlan):
    """What `apply` will change, and for whom.

    Of properties only those of a draft change, which would contradict what they mean today.
    """

    options: UpgradeProtocolOptions
    converted_domains: tuple[str, ...] = ()
    """Domains that are written anew because a draft wrote them otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeProtocolResult(ChangeResult):
    """What was changed."""

    protocol: ProtocolVersions | None = None
    """In force since; None where nothing was committed."""
    converted_domains: tuple[str, ...] = ()
