"""Rules for the contents of one commit.

Implements the writer's part of "Delta Log Entries", "Add File and Remove File", "Append-only
Tables" and "Domain Metadata", as far as the commit and the files its writer read can violate them.
Most of our commits change no rows, or remove whole files, and readers derive the change data of
these from the removes ("Add CDC File"). The others bring `cdc` actions with all of their changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.commit.staged import (
    ReadSet,
    StagedActions,
    locations_of,
    logical_locations,
)
from delta_maintenance.protocol.features.registry import (
    check_protocol,
    supported_features,
    with_requirements,
)
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.statistics.as_json import num_records

UNDERSTOOD_DOMAINS = frozenset({row_tracking.DOMAIN, "delta.clustering"})
"""The domains of the protocol that this release can write and remove."""


def check_commit(
    actions: StagedActions, *, protocol: Protocol, metadata: Metadata, reads: ReadSet, root: str
) -> None:
    """Raises `RefusedError` if the actions violate a rule; the message names the rule.

    `protocol` and `metadata` are those of the new version. `root` is the address of the table,
    needed to compare paths.
    """
    features = supported_features(protocol)
    if actions.protocol is not None:
        _check_protocol(actions.protocol)
    _once("txn", (txn.app_id for txn in actions.txns))
    _once("domainMetadata", (domain.domain for domain in actions.domains))
    _check_domains(actions, features)
    _check_fields(actions)
    _check_paths(actions, root)
    _check_reads(actions, reads, root)
    _check_data_change(actions, reads, root)
    append_only = metadata.configuration.get("delta.appendOnly", "false").lower() == "true"
    if append_only and "appendOnly" in features and _changing(actions.removes):
        raise RefusedError(
            "the table is append-only, and the commit removes files with their rows",
            remedy="set delta.appendOnly to false first to delete rows",
        )
    _check_deletion_vectors(actions, features)
    state = row_tracking.row_tracking_state(protocol, metadata.configuration)
    if state is row_tracking.RowTrackingState.CONTRADICTORY:
        raise RefusedError(
            "row tracking is enabled and suspended at the same time, which forbids every write",
            remedy=f"set {row_tracking.ENABLED_PROPERTY} to false with set-properties",
        )


def _check_protocol(protocol: Protocol) -> None:
    try:
        check_protocol(protocol)
    except CorruptTableError as error:
        raise RefusedError(error.problem) from None
    supported = supported_features(protocol)
    missing = sorted(with_requirements(supported) - supported)
    if missing:
        raise RefusedError(
            f"features of the new protocol require {', '.join(missing)}",
            remedy="add the required features to the protocol as well",
        )


def _once(action: str, keys: Iterable[str]) -> None:
    for key, count in Counter(keys).items():
        if count > 1:
            raise RefusedError(
                f"a commit can contain at most one {action} action for {key!r}, not {count}"
            )


def _check_domains(actions: StagedActions, features: frozenset[str]) -> None:
    if actions.domains and "domainMetadata" not in features:
        raise RefusedError(
            f"the domain {actions.domains[0].domain!r} cannot be written without the table feature "
            "domainMetadata",
            remedy="add the feature first",
        )
    for domain in actions.domains:
        if domain.domain.startswith("delta.") and domain.domain not in UNDERSTOOD_DOMAINS:
            raise RefusedError(
                f"the domain {domain.domain!r} belongs to a feature that this release cannot write",
                remedy="use the engine that wrote it",
            )


def _check_fields(actions: StagedActions) -> None:
    required = {
        "add": ("path", "partitionValues", "size", "modificationTime", "dataChange"),
        "remove": ("path", "dataChange"),
    }
    for action, batch in (("add", actions.adds), ("remove", actions.removes)):
        for name in required[action]:
            if batch[name].null_count:
                raise RefusedError(
                    f"{action}.{name} is missing", file=_first(batch, pc.is_null(batch[name]))
                )


def _check_paths(actions: StagedActions, root: str) -> None:
    for action, batch in (("add", actions.adds), ("remove", actions.removes)):
        locations = locations_of(batch, root=root)
        if pc.count_distinct(locations).as_py() < len(locations):
            counts = pc.value_counts(locations)
            twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
            path = _first(batch, pc.is_in(locations, value_set=twice))
            raise RefusedError(
                f"a commit can contain at most one {action} action per path", file=path
            )
    added, removed = (
        logical_locations(batch, root=root) for batch in (actions.adds, actions.removes)
    )
    is_in_both = pc.is_in(added, value_set=removed)
    if pc.any(is_in_both).as_py():
        raise RefusedError(
            "one commit adds and removes the same logical file",
            file=_first(actions.adds, is_in_both),
        )


def _check_reads(actions: StagedActions, reads: ReadSet, root: str) -> None:
    if reads.files is None or not actions.adds.num_rows:
        return
    # An add that changes the deletion vector of a live file needs the remove of the old pair.
    before = logical_locations(reads.files, root=root)
    again = pc.is_in(
        locations_of(actions.adds, root=root), value_set=locations_of(reads.files, root=root)
    )
    is_same_file = pc.is_in(logical_locations(actions.adds, root=root), value_set=before)
    swapped = actions.adds.filter(pc.and_not(again, is_same_file))
    if not swapped.num_rows:
        return
    removed = actions.removes.filter(
        pc.is_in(logical_locations(actions.removes, root=root), value_set=before)
    )
    is_kept = pc.invert(
        pc.is_in(locations_of(swapped, root=root), value_set=locations_of(removed, root=root))
    )
    if pc.any(is_kept).as_py():
        raise RefusedError(
            "an add changes the deletion vector of a live file without removing the old entry",
            file=_first(swapped, is_kept),
        )


def _check_data_change(actions: StagedActions, reads: ReadSet, root: str) -> None:
    flags = {
        flag
        for batch in (actions.adds, actions.removes)
        for flag in pc.unique(batch["dataChange"]).to_pylist()
    }
    if len(flags) > 1:
        raise RefusedError("the file actions of one commit must have the same dataChange")
    if not actions.only_re_adds:
        return
    live = None if reads.files is None else logical_locations(reads.files, root=root)
    added = logical_locations(actions.adds, root=root)
    unknown = pc.invert(pc.is_in(added, value_set=live if live is not None else added[:0]))
    if pc.any(unknown).as_py():
        raise RefusedError(
            "an add without dataChange must repeat a live file that was read, or be committed "
            "together with the removes of the files whose rows it contains",
            file=_first(actions.adds, unknown),
        )


def _check_deletion_vectors(actions: StagedActions, features: frozenset[str]) -> None:
    vectors = actions.adds["deletionVector"]
    if vectors.null_count == len(vectors):
        return
    present = pc.is_valid(vectors)
    if "deletionVectors" not in features:
        raise RefusedError(
            "a file with a deletion vector requires the table feature deletionVectors",
            file=_first(actions.adds, present),
        )
    uncounted = pc.is_null(num_records(actions.adds["stats"]))
    lacking = pc.and_(present, uncounted)
    if pc.any(lacking).as_py():
        raise RefusedError(
            "the statistics of a file with a deletion vector do not contain its number of rows",
            file=_first(actions.adds, lacking),
            remedy="take numRecords from the footer of the data file",
        )


def _changing(batch: pa.Table) -> bool:
    return bool(pc.any(batch["dataChange"]).as_py())


def _first(batch: pa.Table, mask: pa.Array | pa.ChunkedArray) -> str | None:
    path = batch["path"].filter(mask)[0].as_py()
    return None if path is None else str(path)
