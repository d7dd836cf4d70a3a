"""Options, Plan and Result of `set-properties`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.table_change.options import (
    ChangeOptions,
    ChangePlan,
    ChangeResult,
    PropertyChange,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesOptions(ChangeOptions):
    """The properties to set and to remove, in one commit."""

    properties: Annotated[
        Mapping[str, str],
        Flag(
            "a property and its value, such as delta.enableDeletionVectors=true; repeatable",
            name="--set",
        ),
    ] = field(default_factory=dict)
    """`delta.feature.NAME=supported`, `delta.minReaderVersion` and `delta.minWriterVersion` request
    a protocol and are not stored."""
    remove: Annotated[
        tuple[str, ...],
        Flag(
            "a property to remove; a missing property is not an error; repeatable",
            name="--unset",
            metavar="K",
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesPlan(ChangePlan):
    """The planned change, and the clients that it concerns."""

    options: SetPropertiesOptions
    maps_columns: bool
    """Whether every column gets an ID and a physical name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesResult(ChangeResult):
    """The change that was made."""

    changes: tuple[PropertyChange, ...] = ()
