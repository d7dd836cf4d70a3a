"""Which properties are to be set and removed, and what comes of it."""

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
    """What is to be set and removed, in one commit."""

    properties: Annotated[
        Mapping[str, str],
        Flag(
            name="--set",
            help="a property and its value, such as delta.enableDeletionVectors=true; repeatable",
        ),
    ] = field(default_factory=dict)
    """`delta.feature.NAME=supported`, `delta.minReaderVersion` and `delta.minWriterVersion` ask for
    a protocol and are not stored."""
    remove: Annotated[
        tuple[str, ...],
        Flag(
            name="--unset",
            metavar="K",
            help="a property to remove; one that is not there is no error; repeatable",
        ),
    ] = ()
    """Properties to be removed; one that is not there is no error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesPlan(ChangePlan):
    """What `apply` will change, and for whom."""

    options: SetPropertiesOptions
    maps_columns: bool
    """Whether every column gets an id and a physical name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPropertiesResult(ChangeResult):
    """What was changed."""

    changes: tuple[PropertyChange, ...] = ()
