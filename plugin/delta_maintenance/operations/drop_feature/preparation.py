"""Commits that remove the traces of a feature from a table before the feature is dropped.

Each step reads the table again and does the remaining work, so that a run after a crash continues
the earlier one, and concurrent runs do no harm.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import epoch_millis
from delta_maintenance.protocol.actions.file_columns import REMOVE_TYPES
from delta_maintenance.protocol.actions.model import Metadata
from delta_maintenance.protocol.changes.drop import FeatureRemoval, feature_names
from delta_maintenance.protocol.vacuum import deletion_vector_paths
from delta_maintenance.table.commit.beside_writers import Ending, commit_beside_writers
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.store_clock import passed_time

_FIELDS = {"add": (), "remove": ("path", "deletionVector", "deletionTimestamp")}
_NAME = "deletion_vector_"
_PLAIN = r"^[A-Za-z0-9._~/-]*$"


class FeatureGoneError(Exception):
    """Another process has dropped the feature in the meantime."""

    def __init__(self, version: int) -> None:
        self.version = version
        """The latest version that was read."""
        super().__init__(version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Commits to a table as long as it has a feature."""

    table: Table
    feature: str
    """The name of the feature, exactly as in the protocol."""
    writer: Writer

    def snapshot(self) -> Snapshot:
        """Returns the latest snapshot. Raises `FeatureGoneError` if it lacks the feature."""
        return self.require_feature(self.table.snapshot())

    def require_feature(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot. Raises `FeatureGoneError` if it lacks the feature."""
        if self.feature not in feature_names(snapshot.protocol):
            raise FeatureGoneError(snapshot.version)
        return snapshot

    def begin(
        self,
        snapshot: Snapshot,
        operation: str,
        *,
        parameters: dict[str, object] | None = None,
        operation_id: str | None = None,
        planned_version: int | None = None,
    ) -> Transaction:
        """Begins a transaction on a snapshot of this table."""
        return Transaction(
            snapshot,
            operation,
            parameters=parameters,
            operation_id=operation_id,
            planned_version=planned_version,
            writer=self.writer,
        )

    def commit(
        self, stage: Callable[[Snapshot], Transaction | Ending | None], *, only_next: bool = False
    ) -> int | None:
        """Commits the actions that `stage` derives from the latest snapshot.

        Returns the version, or None if there are no actions. After a conflict, `stage` is called
        again; with `only_next`, also after any other commit. Raises `CommitConflictError` if other
        writers repeatedly commit first.
        """
        outcome = commit_beside_writers(self.table.uri, self.snapshot, stage, only_next=only_next)
        return None if outcome is None else outcome.version


def remove_domains(committer: Committer, removal: FeatureRemoval) -> int | None:
    """Removes all domains if no remaining feature can own one."""

    def stage(snapshot: Snapshot) -> Transaction | None:
        names = sorted(snapshot.log.state.domains) if removal.leaked_domains else []
        if not names:
            return None
        parameters: dict[str, object] = {"domainMetadataRemovedCount": len(names)}
        transaction = committer.begin(snapshot, "DOMAIN METADATA CLEANUP", parameters=parameters)
        for name in names:
            transaction.remove_domain(name)
        return transaction

    return committer.commit(stage)


def switch_off(committer: Committer, removal: FeatureRemoval) -> int | None:
    """Changes the properties so that no writer uses the feature again."""

    def stage(snapshot: Snapshot) -> Transaction | None:
        before = snapshot.metadata
        if removal.metadata_trace(before) is None:
            return None
        after = removal.prepared(before)
        if after == before:
            # Rewriting the files removes the remaining traces.
            return None
        given, taken = property_changes(before, after)
        if given:
            properties = json.dumps(given, separators=(",", ":"))
            operation, parameters = "SET TBLPROPERTIES", {"properties": properties}
        else:
            properties = json.dumps(taken, separators=(",", ":"))
            operation = "UNSET TBLPROPERTIES"
            parameters = {"properties": properties, "ifExists": "true"}
        transaction = committer.begin(snapshot, operation, parameters={**parameters})
        transaction.stage_metadata(after)
        return transaction

    return committer.commit(stage)


def property_changes(before: Metadata, after: Metadata) -> tuple[dict[str, str], list[str]]:
    """Returns the properties that get a new value, and the properties that are removed."""
    given = {
        key: value
        for key, value in sorted(after.configuration.items())
        if before.configuration.get(key) != value
    }
    return given, sorted(before.configuration.keys() - after.configuration.keys())


def keep_vector_files(
    committer: Committer, removal: FeatureRemoval, *, retention: timedelta
) -> int | None:
    """Commits tombstones of the vector files that versions within the retention still need."""

    def stage(snapshot: Snapshot) -> Transaction | None:
        if "deletionVector" not in removal.file_fields:
            return None
        # Some tables set a retention longer than the calendar, to keep everything.
        passed = passed_time(snapshot, committer.writer.now())
        after = epoch_millis(passed) - retention // timedelta(milliseconds=1)
        removes = missing_vector_tombstones(snapshot, deleted_after_ms=after)
        if not removes.num_rows:
            return None
        transaction = committer.begin(snapshot, "Deletion Vector Tombstones")
        transaction.stage_removes(removes)
        return transaction

    return committer.commit(stage)


def missing_vector_tombstones(snapshot: Snapshot, *, deleted_after_ms: int) -> pa.Table:
    """Returns `remove` actions for the vector files that only unexpired tombstones refer to.

    A writer without support for deletion vectors would vacuum these files unless such actions name
    them like data files, and older versions still need them. Vector files that already have one are
    left out. A tombstone without a deletion time counts as unexpired. Instants are in milliseconds
    since 1970-01-01 UTC. Memory grows with the number of vector files.
    """
    return snapshot.avoiding_damage(lambda sound: _missing(sound, deleted_after_ms))


def _missing(snapshot: Snapshot, deleted_after_ms: int) -> pa.Table:
    needed: list[pa.StringArray] = []
    named: list[pa.Array] = []
    for batch in snapshot.log.scan(fields=_FIELDS):
        tombstones = batch.tombstones
        if "deletionVector" not in tombstones.column_names:
            tombstones = tombstones.append_column(
                "deletionVector", pa.nulls(tombstones.num_rows, REMOVE_TYPES["deletionVector"])
            )
        vectors = tombstones["deletionVector"]
        plain = tombstones.filter(pc.is_null(vectors))["path"]
        named.extend(plain.filter(pc.match_substring(plain, _NAME)).chunks)
        fresh = pc.fill_null(_is_deleted_after(tombstones, deleted_after_ms), True)
        for chunk in vectors.filter(pc.and_(pc.is_valid(vectors), fresh)).chunks:
            relative, absolute = deletion_vector_paths(chunk)
            needed.extend((_encode_paths(relative), absolute))
    paths = pc.unique(pa.chunked_array(needed, pa.string()))
    present = pa.chunked_array(named, pa.string())
    paths = paths.filter(pc.invert(pc.is_in(paths, value_set=present)))
    return pa.table({"path": paths, "dataChange": pa.repeat(pa.scalar(False), len(paths))})


def _is_deleted_after(tombstones: pa.Table, after_ms: int) -> pa.ChunkedArray:
    if "deletionTimestamp" not in tombstones.column_names:
        return pa.chunked_array([pa.nulls(tombstones.num_rows, pa.bool_())])
    return pc.greater(tombstones["deletionTimestamp"], after_ms)


def _encode_paths(paths: pa.StringArray) -> pa.StringArray:
    """Encodes paths as URIs for actions. Only prefixes that a user chose need encoding."""
    odd = pc.invert(pc.match_substring_regex(paths, _PLAIN))
    if not pc.any(odd).as_py():
        return paths
    encoded = pa.array([quote(path) for path in paths.filter(odd).to_pylist()], pa.string())
    return pc.replace_with_mask(paths, odd, encoded)
