"""What every verb that writes requires of a table, and a rewrite of each live file.

`fsck` reports the same problems as corruption. A rewrite would make them permanent, or give the row
IDs of live files to other rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError, locating
from delta_maintenance.protocol.features.registry import (
    COMMITS_THROUGH_CATALOGS,
    MAINTENANCE_PERMISSIONS,
    Operation,
    require_supported,
    supports,
)
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.protocol.row_tracking.row_ids import RowTrackingState, row_tracking_state
from delta_maintenance.protocol.statistics.as_json import num_records
from delta_maintenance.protocol.statistics.stats import stated_row_counts
from delta_maintenance.table.evidence.contradictions import find_contradiction
from delta_maintenance.table.read.active_files import record_counts
from delta_maintenance.table.read.log_view import EXAMINE
from delta_maintenance.table.read.managed_log import ManagedStore
from delta_maintenance.table.read.snapshot import Snapshot

__all__ = ["EXAMINE"]

_LARGEST = 2**63 - 1


def require_writable(snapshot: Snapshot, operation: Operation, *, repairs: bool = False) -> None:
    """Raises unless this release may do `operation` on top of the snapshot.

    With `repairs`, the state may contradict itself, because the operation only replaces damaged
    files. `UnsupportedFeatureError` for an unsupported protocol, and if the catalog of the table
    does not permit the operation; the errors of `require_proved`.
    """
    with locating(table=snapshot.table, version=snapshot.version):
        require_permitted(snapshot, operation)
        require_supported(snapshot.protocol, operation)
    if not repairs:
        require_proved(snapshot)


def require_permitted(snapshot: Snapshot, operation: Operation) -> None:
    """Raises `UnsupportedFeatureError` for maintenance that the catalog of a catalog-managed table
    does not permit ("Maintenance Operations on Catalog-managed Tables"). Requests nothing.
    """
    if not supports(snapshot.protocol, "catalogManaged"):
        return
    store = snapshot.log.store
    if not isinstance(store, ManagedStore):
        raise UnsupportedFeatureError(
            "a catalog-managed table that is opened by its address is only read",
            remedy="open the table by its name in the catalog",
        )
    permission = MAINTENANCE_PERMISSIONS.get(operation)
    if permission is None or permission in store.state.allowed_maintenance:
        return
    remedy = f"ask its owner for {permission}"
    if operation is not Operation.CLEAN_STAGED:
        remedy += f", and {COMMITS_THROUGH_CATALOGS}"
    raise UnsupportedFeatureError(f"the catalog does not permit {operation.value}", remedy=remedy)


def require_proved(snapshot: Snapshot) -> None:
    """Raises `CorruptTableError` for a state without files that `fsck` reports as corruption, or if
    the log contradicts the snapshot.

    Reads the evidence in the log, once for each snapshot (`table.evidence.contradictions`).
    """
    find_contradiction(snapshot)
    require_consistent(snapshot)


def require_consistent(snapshot: Snapshot) -> None:
    """Raises `CorruptTableError` for a state that other readers refuse or interpret differently, or
    that is known to be contradicted by the log. Reads nothing.
    """
    if (problem := snapshot.contradiction) is not None:
        raise CorruptTableError(
            problem, table=snapshot.table, version=snapshot.version, remedy=EXAMINE
        )
    snapshot.require_agreement()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """The rules for the file actions of one version."""

    version: int
    has_vectors: bool
    """Whether the table supports deletion vectors."""
    row_ids: RowTrackingState
    mark: int
    """The high-water mark of row IDs."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> FileRules:
        """Derives the rules. Raises `CorruptTableError` for an unreadable high-water mark."""
        row_ids = row_tracking_state(snapshot.protocol, snapshot.metadata.configuration)
        mark = row_tracking.NO_ROW_ID
        if row_ids is not RowTrackingState.UNSUPPORTED:
            domain = snapshot.log.state.domains.get(row_tracking.DOMAIN)
            mark = row_tracking.high_water_mark(None if domain is None else domain.configuration)
        return cls(
            version=snapshot.version,
            has_vectors=supports(snapshot.protocol, "deletionVectors"),
            row_ids=row_ids,
            mark=min(mark, _LARGEST),
        )

    @property
    def has_row_ids(self) -> bool:
        """Whether the row IDs in the log must be unique."""
        return self.row_ids in (RowTrackingState.SUPPORTED, RowTrackingState.ENABLED)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that the rules need besides path, deletion vector and statistics."""
        tracks = self.row_ids is not RowTrackingState.UNSUPPORTED
        return ("baseRowId", "defaultRowCommitVersion") if tracks else ()

    def problem(self, adds: pa.Table) -> str | None:
        """The first problem of a batch of live files, as one clause."""
        return self._of_vectors(adds) or self._of_row_ids(adds)

    def _of_vectors(self, adds: pa.Table) -> str | None:
        if "deletionVector" not in adds.column_names:
            return None
        vectors = adds["deletionVector"]
        if vectors.null_count == len(vectors):
            return None
        files = adds.filter(pc.is_valid(vectors))
        if not self.has_vectors:
            return _first(files, "has a deletion vector, which the table does not support")
        marked = pc.struct_field(files["deletionVector"], "cardinality")
        over = pc.fill_null(pc.greater(marked, record_counts(files)), False)
        return _first(files.filter(over), "has fewer rows than its deletion vector marks")

    def _of_row_ids(self, adds: pa.Table) -> str | None:
        state = self.row_ids
        if state is RowTrackingState.UNSUPPORTED or not adds.num_rows:
            return None
        base, born = (
            adds[name]
            if name in adds.column_names
            else pa.chunked_array([pa.nulls(adds.num_rows, pa.int64())])
            for name in self.fields
        )
        late = pc.fill_null(pc.greater(born, self.version), False)
        problem = _first(adds.filter(late), "has a row commit version after that of the table")
        if problem is None and state is RowTrackingState.ENABLED:
            problem = _first(adds.filter(pc.is_null(base)), "has no row IDs")
        if problem is not None or state is RowTrackingState.SUSPENDED:
            return problem
        # Row counts are taken from the text, and parsed only where they decide.
        for stated in (stated_row_counts, num_records):
            rows = pc.max_element_wise(pc.fill_null(record_counts(adds, stated=stated), 1), 0)
            above = pc.greater(pc.add(base, pc.subtract(rows, 1)), self.mark)
            above = pc.fill_null(pc.and_(above, pc.greater(rows, 0)), False)
            adds, base = adds.filter(above), base.filter(above)
        return _first(adds, f"has row IDs above the high-water mark {self.mark}")


def _first(files: pa.Table, problem: str) -> str | None:
    return f"the file {files['path'][0].as_py()} {problem}" if files.num_rows else None
