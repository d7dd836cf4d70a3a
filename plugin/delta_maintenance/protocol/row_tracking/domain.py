"""Row tracking as the log states it: whether it is on, and the highest row ID ever assigned.

Implements the reading side of "Row Tracking" and "Writer Requirements for Row Tracking" of the
protocol, with the drafts of 2023, in which the mark was an action of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.model import Json, Protocol
from delta_maintenance.protocol.features.registry import supports

FEATURE = "rowTracking"
DOMAIN = "delta.rowTracking"
ENABLED_PROPERTY = "delta.enableRowTracking"
SUSPENDED_PROPERTY = "delta.rowTrackingSuspended"

NO_ROW_ID = -1
"""The high-water mark of a table that never assigned a row ID; the first one is 0."""


class RowTrackingState(Enum):
    """What a writer owes to row tracking on a table."""

    UNSUPPORTED = "unsupported"
    """The protocol does not list the feature, so the properties mean nothing."""
    SUPPORTED = "supported"
    """New files get row IDs; rewritten rows may get new ones."""
    ENABLED = "enabled"
    """New files get row IDs; rewritten rows keep theirs."""
    SUSPENDED = "suspended"
    """New files get no row IDs."""
    CONTRADICTORY = "contradictory"
    """Enabled and suspended at once, which is illegal: every write is refused."""


def row_tracking_state(protocol: Protocol, configuration: Mapping[str, str]) -> RowTrackingState:
    """The state that the protocol and the table's properties give.

    `CorruptTableError` where one of the two properties is neither true nor false.
    """
    if not supports(protocol, FEATURE):
        return RowTrackingState.UNSUPPORTED
    enabled = _is_set(configuration, ENABLED_PROPERTY)
    suspended = _is_set(configuration, SUSPENDED_PROPERTY)
    if enabled and suspended:
        return RowTrackingState.CONTRADICTORY
    if suspended:
        return RowTrackingState.SUSPENDED
    return RowTrackingState.ENABLED if enabled else RowTrackingState.SUPPORTED


def high_water_mark(domain_configuration: str | None) -> int:
    """The mark in the configuration of the domain `delta.rowTracking`.

    `NO_ROW_ID` for None, which stands for a table without the domain. `CorruptTableError` where the
    text holds no mark: to go on from 0 would assign row IDs twice.
    """
    if domain_configuration is None:
        return NO_ROW_ID
    try:
        value = json.loads(domain_configuration)
    except (ValueError, RecursionError):
        value = None
    # The protocol of early 2024 names the key `highWaterMark`.
    mark = _mark(value, "rowIdHighWaterMark", "highWaterMark") if isinstance(value, dict) else None
    if mark is None:
        raise CorruptTableError(f"the domain {DOMAIN} holds no high-water mark of row IDs")
    return mark


def draft_high_water_mark(action: Json) -> int | None:
    """The mark in an action `rowIdHighWaterMark` of the drafts of 2023.

    The spring's action has `highWaterMark` and `preservedRowIds`, the summer's only the former;
    early Databricks checkpoints have `value`. None where every field is null, as such columns are.
    """
    return _mark(action, "highWaterMark", "value")


def render_domain_configuration(mark: int) -> str:
    """The configuration of the domain `delta.rowTracking`, with the one key of the protocol."""
    return json.dumps({"rowIdHighWaterMark": mark}, separators=(",", ":"))


def highest_assigned_row_id(
    base_row_id: pa.Array | pa.ChunkedArray, num_records: pa.Array | pa.ChunkedArray
) -> int:
    """The highest default row ID of these files, `NO_ROW_ID` where none has a base row ID.

    One element per file in both, int64; `num_records` counts physical rows, deleted ones included.
    A file without a row count counts as one row, so the answer is then a lower bound.
    `CorruptTableError` where an ID is beyond 64 bits.
    """
    last_row = pc.subtract(pc.fill_null(num_records, 1), 1)
    try:
        highest = pc.max(pc.add_checked(base_row_id, last_row)).as_py()
    except pa.ArrowInvalid:
        raise CorruptTableError("the row IDs of a file are beyond 64 bits") from None
    return NO_ROW_ID if highest is None else int(highest)


def _mark(value: Json, *keys: str) -> int | None:
    found = next((value[key] for key in keys if value.get(key) is not None), None)
    if found is None:
        return None
    # Map-valued domains hold every value as text.
    if isinstance(found, str) and re.fullmatch(r"-?[0-9]{1,19}", found):
        found = int(found)
    if not _is_mark(found):
        raise CorruptTableError(f"the high-water mark of row IDs is no row ID: {found!r}")
    return int(found)


def _is_mark(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and NO_ROW_ID <= value < 2**63


def _is_set(configuration: Mapping[str, str], name: str) -> bool:
    text = configuration.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise CorruptTableError(f"the property {name} is neither true nor false: {text!r}")
    return text.lower() == "true"
