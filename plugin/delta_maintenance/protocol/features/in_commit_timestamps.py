"""In-commit timestamps: rules for the timestamps stored in commits ("In-Commit Timestamps")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.features.registry import supports

FEATURE = "inCommitTimestamp"
ENABLED_PROPERTY = "delta.enableInCommitTimestamps"
ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"


def is_active(protocol: Protocol, configuration: Mapping[str, str]) -> bool:
    """Whether every commit must contain a timestamp."""
    enabled = configuration.get(ENABLED_PROPERTY) or "false"
    return enabled.lower() == "true" and supports(protocol, FEATURE)


def next_timestamp(now_ms: int, previous_ms: int) -> int:
    """The timestamp of a commit made at `now_ms`, always later than that of the previous commit.

    Raises `RefusedError` if the previous commit has a time after the year 9999.
    """
    if previous_ms >= _END_OF_CALENDAR_MS:
        raise RefusedError(
            f"the newest commit has the timestamp {previous_ms} ms after 1970, and the next one "
            "must be later",
            remedy="find the writer whose clock was wrong; do not commit until then",
        )
    return max(now_ms, previous_ms + 1)


_END_OF_CALENDAR_MS = 253_402_300_799_999
"""The end of the year 9999."""


def with_enablement(
    metadata: Metadata, before: Metadata, *, newly_active: bool, version: int, timestamp_ms: int
) -> Metadata:
    """The metadata of a commit with in-commit timestamps, including the enablement properties.

    If the timestamps were active `before`, the recorded version and time do not change. If the
    commit activates them, it records its own version and time, except at version 0.
    """
    record: Mapping[str, str]
    if newly_active:
        record = {ENABLEMENT_VERSION: str(version), ENABLEMENT_TIMESTAMP: str(timestamp_ms)}
        if version == 0:
            record = {}
    else:
        recorded = (ENABLEMENT_VERSION, ENABLEMENT_TIMESTAMP)
        record = {
            name: before.configuration[name] for name in recorded if name in before.configuration
        }
    return replace(metadata, configuration={**metadata.configuration, **record})
