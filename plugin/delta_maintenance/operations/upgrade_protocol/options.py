"""Options, Plan and Result of `upgrade-protocol`."""

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
    """The features that the table should support."""

    features: Annotated[
        tuple[str, ...],
        Flag(
            "a table feature, by its name in the protocol; repeatable",
            name="--feature",
            metavar="NAME",
        ),
    ] = ()
    """Required features are added as well."""
    reader_version: Annotated[
        int | None, Flag("support all features that reader version N implies")
    ] = None
    writer_version: Annotated[
        int | None, Flag("support all features that writer version N implies")
    ] = None
    convert_draft: Annotated[
        bool,
        Flag(
            "convert the remains of a 2023 draft of row tracking: the high-water mark moves "
            "into its domain, and maps that represent the text of a domain become text"
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeProtocolPlan(ChangePlan):
    """The planned change, and the clients that it concerns.

    The only properties that change are those of a draft that contradict their present meaning.
    """

    options: UpgradeProtocolOptions
    converted_domains: tuple[str, ...] = ()
    """Domains that are written again because they have the format of a draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeProtocolResult(ChangeResult):
    """The change that was made."""

    protocol: ProtocolVersions | None = None
    """The new protocol; None if nothing was committed."""
    converted_domains: tuple[str, ...] = ()
