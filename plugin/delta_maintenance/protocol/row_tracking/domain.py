"""Row tracking in the log: its state, and the high-water mark of row IDs.

Implements the reading part of "Row Tracking" and "Writer Requirements for Row Tracking", including
the drafts of 2023, which stored the mark in an action of its own.
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
    """What row tracking requires of writers of a table."""

    UNSUPPORTED = "unsupported"
    """The protocol does not list the feature, and the properties have no effect."""
    SUPPORTED = "supported"
    """New files get row IDs; rewritten rows may get new ones."""
    ENABLED = "enabled"
    """New files get row IDs; rewritten rows keep theirs."""
    SUSPENDED = "suspended"
    """New files get no row IDs."""
    CONTRADICTORY = "contradictory"
    """Both enabled and suspended, which is invalid; every write is refused."""


def row_tracking_state(protocol: Protocol, configuration: Mapping[str, str]) -> RowTrackingState:
    """The state according to the protocol and the table properties.

    Raises `CorruptTableError` if one of the two properties is neither true nor false.
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

    None stands for a table without the domain and returns `NO_ROW_ID`. Raises `CorruptTableError`
    if the text contains no mark, because starting at 0 would assign row IDs twice.
    """
    if domain_configuration is None:
        return NO_ROW_ID
    try:
        value = json.loads(domain_configuration)
    except (ValueError, RecursionError):
        value = None
    # The key is `highWaterMark` in the protocol of early 2024.
    mark = _mark(value, "rowIdHighWaterMark", "highWaterMark") if isinstance(value, dict) else None
    if mark is None:
        raise CorruptTableError(f"the domain {DOMAIN} contains no high-water mark of row IDs")
    return mark


def draft_high_water_mark(action: Json) -> int | None:
    """The mark in a `rowIdHighWaterMark` action of the drafts of 2023.

    The first draft has `highWaterMark` and `preservedRowIds`, the second one only `highWaterMark`;
    early Databricks checkpoints have `value`. None if all fields are null, as in checkpoint columns
    without such an action.
    """
    return _mark(action, "highWaterMark", "value")


def render_domain_configuration(mark: int) -> str:
    """The configuration of the domain `delta.rowTracking`, with the key of the protocol."""
    return json.dumps({"rowIdHighWaterMark": mark}, separators=(",", ":"))


def highest_assigned_row_id(
    base_row_id: pa.Array | pa.ChunkedArray, num_records: pa.Array | pa.ChunkedArray
) -> int:
    """The highest default row ID of these files, `NO_ROW_ID` if none has a base row ID.

    Both arguments are int64 and have one element per file; `num_records` counts physical rows,
    including deleted ones. A file without a row count counts as one row, so the result is then a
    lower bound. Raises `CorruptTableError` if an ID exceeds 64 bits.
    """
    last_row = pc.subtract(pc.fill_null(num_records, 1), 1)
    try:
        highest = pc.max(pc.add_checked(base_row_id, last_row)).as_py()
    except pa.ArrowInvalid:
        raise CorruptTableError("a row ID of a file exceeds 64 bits") from None
    return NO_ROW_ID if highest is None else int(highest)


def _mark(value: Json, *keys: str) -> int | None:
    found = next((value[key] for key in keys if value.get(key) is not None), None)
    if found is None:
        return None
    # Domains with a map as configuration store every value as text.
    if isinstance(found, str) and re.fullmatch(r"-?[0-9]{1,19}", found):
        found = int(found)
    if not _is_mark(found):
        raise CorruptTableError(f"the high-water mark of row IDs is not a row ID: {found!r}")
    return int(found)


def _is_mark(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and NO_ROW_ID <= value < 2**63


def _is_set(configuration: Mapping[str, str], name: str) -> bool:
    text = configuration.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise CorruptTableError(f"the property {name} is neither true nor false: {text!r}")
    return text.lower() == "true"
