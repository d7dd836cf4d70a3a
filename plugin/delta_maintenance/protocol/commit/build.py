"""Building a commit for one version and one time, and its text.

Implements "Delta Log Entries" for writers, "Commit Provenance Information" and the writer's part of
"In-Commit Timestamps" and "Row Tracking". Everything that depends on the version or the time is
added here. To try another version, a commit is built again from its attempt. File actions are
rendered column by column, because a commit can contain tens of thousands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.actions.model import DomainMetadata, Json, Metadata
from delta_maintenance.protocol.columns import one_array
from delta_maintenance.protocol.commit.conflicts import Attempt
from delta_maintenance.protocol.commit.staged import StagedActions
from delta_maintenance.protocol.features import in_commit_timestamps
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.row_tracking.row_ids import (
    RowTrackingState,
    assign_row_ids,
    row_tracking_state,
)

OPERATION_ID = "operationId"
"""The field of `commitInfo` by which a repeated task finds the commit of its first run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The contents of `commitInfo` that do not follow from the commit itself."""

    read_version: int
    engine_info: str
    txn_id: str
    """Unique to this commit; proves that a commit file was written by it."""
    operation_id: str | None = None
    """Identifies the task; the same for every run of the task."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    version_properties: tuple[str, ...] = ()
    """Properties of the staged metadata whose value is the version of this commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCommit:
    """One version, ready to be rendered."""

    version: int
    in_commit_timestamp: int | None
    """Milliseconds since 1970-01-01 UTC; None if the table does not have them."""
    commit_info: Mapping[str, Any]
    actions: StagedActions


def build(attempt: Attempt, provenance: Provenance, *, now_ms: int) -> BuiltCommit:
    """The commit for the version of `attempt` at the time `now_ms`, in milliseconds since 1970.

    Raises `RefusedError` if row IDs cannot be assigned or would be lost, or if the in-commit
    timestamp of the previous version is needed and not available.
    """
    timestamp = _in_commit_timestamp(attempt, now_ms)
    actions = _with_commit_info(attempt, provenance, timestamp, now_ms)
    state = row_tracking_state(attempt.protocol_after, attempt.metadata_after.configuration)
    if state is RowTrackingState.ENABLED and not attempt.preserves_row_ids:
        raise RefusedError(
            "row tracking is enabled, and the moved rows would lose their row IDs",
            remedy="write the materialized row ID columns to the new files",
        )
    if state in (RowTrackingState.SUPPORTED, RowTrackingState.ENABLED):
        actions = _with_row_ids(attempt, actions)
    return BuiltCommit(
        version=attempt.version,
        in_commit_timestamp=timestamp,
        commit_info=_commit_info(attempt, provenance, timestamp, now_ms),
        actions=actions,
    )


def _in_commit_timestamp(attempt: Attempt, now_ms: int) -> int | None:
    configuration = attempt.metadata_after.configuration
    if not in_commit_timestamps.is_active(attempt.protocol_after, configuration):
        return None
    if attempt.previous_ms is None:
        raise RefusedError(
            f"the commit of version {attempt.base_version} is missing, so its in-commit timestamp, "
            "which the new one must exceed, is not known",
            remedy="restore that commit from a backup",
        )
    return in_commit_timestamps.next_timestamp(now_ms, attempt.previous_ms)


def _with_commit_info(
    attempt: Attempt, provenance: Provenance, timestamp: int | None, now_ms: int
) -> StagedActions:
    staged = attempt.actions
    instant = timestamp if timestamp is not None else now_ms
    times = pc.fill_null(staged.removes["deletionTimestamp"], instant)
    at = staged.removes.column_names.index("deletionTimestamp")
    return replace(
        staged,
        metadata=_metadata(attempt, provenance, timestamp),
        txns=tuple(
            txn if txn.last_updated is not None else replace(txn, last_updated=instant)
            for txn in staged.txns
        ),
        removes=staged.removes.set_column(at, "deletionTimestamp", times),
    )


def _metadata(attempt: Attempt, provenance: Provenance, timestamp: int | None) -> Metadata | None:
    metadata = attempt.actions.metadata
    if metadata is None:
        return None
    if provenance.version_properties:
        mine = dict.fromkeys(provenance.version_properties, str(attempt.version))
        metadata = replace(metadata, configuration={**metadata.configuration, **mine})
    if timestamp is None:
        return metadata
    before = attempt.metadata
    return in_commit_timestamps.with_enablement(
        metadata,
        before,
        newly_active=not in_commit_timestamps.is_active(attempt.protocol, before.configuration),
        version=attempt.version,
        timestamp_ms=timestamp,
    )


def _with_row_ids(attempt: Attempt, actions: StagedActions) -> StagedActions:
    other_domains = tuple(d for d in actions.domains if d.domain != row_tracking.DOMAIN)
    tracking_domains = [d for d in actions.domains if d.domain == row_tracking.DOMAIN]
    if any(domain.removed for domain in tracking_domains):
        raise RefusedError(
            "the row ID high-water mark cannot be removed while row tracking assigns row IDs",
            remedy="suspend row tracking first",
        )
    stated_mark = max(
        (row_tracking.high_water_mark(domain.configuration) for domain in tracking_domains),
        default=row_tracking.NO_ROW_ID,
    )
    start = max(attempt.high_water_mark, stated_mark)
    adds, mark = assign_row_ids(actions.adds, high_water_mark=start, version=attempt.version)
    domains = other_domains
    if mark > attempt.high_water_mark or tracking_domains:
        text = row_tracking.render_domain_configuration(mark)
        domains = (DomainMetadata(domain=row_tracking.DOMAIN, configuration=text), *other_domains)
    return replace(actions, adds=adds, domains=domains)


def _commit_info(
    attempt: Attempt, provenance: Provenance, timestamp: int | None, now_ms: int
) -> dict[str, Any]:
    info: dict[str, Any] = {}
    if timestamp is not None:
        info["inCommitTimestamp"] = timestamp
    info |= {
        "timestamp": now_ms,
        "operation": attempt.operation,
        "operationParameters": _texts(provenance.parameters),
        "readVersion": provenance.read_version,
        "isolationLevel": attempt.isolation.value,
        "isBlindAppend": attempt.reads.is_empty and not attempt.actions.removes.num_rows,
        "operationMetrics": _texts(provenance.metrics),
        "engineInfo": provenance.engine_info,
        "txnId": provenance.txn_id,
    }
    state = row_tracking_state(attempt.protocol_after, attempt.metadata_after.configuration)
    tags = dict(provenance.tags)
    if state is not RowTrackingState.UNSUPPORTED:
        tags["delta.rowTracking.preserved"] = str(attempt.preserves_row_ids).lower()
    if tags:
        info["tags"] = tags
    if provenance.operation_id is not None:
        info[OPERATION_ID] = provenance.operation_id
    return info


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    # Readers expect both maps to have string values; other values are stored as JSON text.
    return {
        name: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for name, value in values.items()
    }


_ROWS = 1 << 14
"""Rows rendered per step; the strings of one Arrow array must stay below 2 GiB."""


def render_commit(commit_info: Json, actions: StagedActions) -> bytes:
    """The bytes of the commit file. Null fields are omitted; nulls in maps are kept."""
    lines = [_line("commitInfo", commit_info)]
    if actions.protocol is not None:
        lines.append(_line("protocol", actions.protocol.to_json()))
    if actions.metadata is not None:
        lines.append(_line("metaData", actions.metadata.to_json()))
    lines.extend(_line("txn", txn.to_json()) for txn in actions.txns)
    lines.extend(_line("domainMetadata", domain.to_json()) for domain in actions.domains)
    lines.extend(_file_lines("remove", actions.removes))
    lines.extend(_file_lines("add", actions.adds))
    lines.extend(_file_lines("cdc", actions.changes))
    return b"".join(lines)


def _line(name: str, value: Json) -> bytes:
    text = json.dumps({name: value}, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def _file_lines(action: str, batch: pa.Table) -> Iterator[bytes]:
    for at in range(0, batch.num_rows, _ROWS):
        rows = batch.slice(at, _ROWS)
        columns = [one_array(column) for column in rows.columns]
        objects = _objects(rows.column_names, columns, rows.num_rows)
        texts = pc.binary_join_element_wise(f'{{"{action}":', objects, "}\n", "")
        # The strings of one array are adjacent in its data buffer, so the buffer holds the lines.
        offsets = np.frombuffer(texts.buffers()[1], np.int32)
        start, end = offsets[texts.offset], offsets[texts.offset + len(texts)]
        yield texts.buffers()[2].slice(int(start), int(end - start)).to_pybytes()


def _objects(names: list[str], columns: list[pa.Array], rows: int) -> pa.Array:
    # A null is an omitted field: its pair is empty, including the comma.
    pairs = [
        pc.fill_null(pc.binary_join_element_wise(f",{_key(name)}:", _column_texts(column), ""), "")
        for name, column in zip(names, columns, strict=True)
    ]
    joined = pc.binary_join_element_wise(pa.array([""] * rows, pa.string()), *pairs, "")
    return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "")


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _column_texts(values: pa.Array) -> pa.Array:
    """Each value as JSON text; nulls stay null."""
    kind = values.type
    if pa.types.is_null(kind):
        return values.cast(pa.string())
    if pa.types.is_string(kind):
        return _quote_texts(values)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values.cast(pa.string())
    if pa.types.is_struct(kind):
        # `pc.struct_field` takes time for each field of the struct.
        texts = _objects([child.name for child in kind], values.flatten(), len(values))
    elif pa.types.is_map(kind):
        items = pc.fill_null(_column_texts(values.items), "null")
        entries = pc.binary_join_element_wise(_column_texts(values.keys), items, ":")
        texts = _join_objects("{", values.offsets, entries, "}")
    elif pa.types.is_list(kind):
        entries = pc.fill_null(_column_texts(values.values), "null")
        texts = _join_objects("[", values.offsets, entries, "]")
    else:
        return pa.array([_scalar(value) for value in values.to_pylist()], pa.string())
    return pc.if_else(pc.is_valid(values), texts, pa.scalar(None, pa.string()))


def _join_objects(opening: str, offsets: pa.Array, entries: pa.Array, closing: str) -> pa.Array:
    # Copied, because `from_arrays` does not accept the sliced offsets of a sliced array.
    lists = pa.ListArray.from_arrays(pa.array(offsets.to_numpy().copy(), pa.int32()), entries)
    return pc.binary_join_element_wise(opening, pc.binary_join(lists, ","), closing, "")


def _quote_texts(texts: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, r'[\x00-\x1f"\\]')).as_py():
        texts = pc.replace_substring(texts, "\\", "\\\\")
        texts = pc.replace_substring(texts, '"', '\\"')
        if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
            for code in range(0x20):
                texts = pc.replace_substring(texts, chr(code), f"\\u{code:04x}")
    return pc.binary_join_element_wise('"', texts, '"', "")


def _scalar(value: Any) -> str | None:
    return None if value is None else json.dumps(value, allow_nan=False)
