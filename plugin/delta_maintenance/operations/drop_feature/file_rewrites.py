"""Rewrites the data files that use a feature before the feature is dropped.

For `deletionVectors`, the deleted rows are removed from the live files. For `typeWidening`, files
with earlier types are rewritten in the current types, and the record of the type changes is removed
from the schema. Implements the writer requirements of "Type Widening" and "Deletion Vectors" for a
feature that will be dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import (
    CommitConflictError,
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
)
from delta_maintenance.operations.drop_feature.preparation import TRIES, Committer
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.operations.rewriting.footer_reasons import OLD_TYPES, FooterReasons
from delta_maintenance.operations.rewriting.live_columns import live_columns
from delta_maintenance.operations.rewriting.models import (
    RewriteOptions,
    RewritePlan,
    RewriteResult,
)
from delta_maintenance.operations.rewriting.verb import ApplySettings, RewriteVerb
from delta_maintenance.protocol.changes.drop import FeatureRemoval
from delta_maintenance.table.commit.other_writers import OtherWriters
from delta_maintenance.table.commit.outcome import AlreadyDone, Landed
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot

_ROUNDS = 5
"""The maximum number of rewrites. Other writers may add files that use the feature meanwhile."""

Reason = Literal["deleted-rows", "old-types"]


def _verb(reason: Reason) -> RewriteVerb[RewriteOptions, RewritePlan, RewriteResult]:
    return RewriteVerb(
        plan_type=RewritePlan,
        result_type=RewriteResult,
        operation="REORG",
        parameters={"applyPurge": True},
        rules=lambda _, target: ChoiceRules(
            target_bytes=target,
            small_bytes=0,
            merge_small=False,
            deleted_share=0.0 if reason == "deleted-rows" else None,
            full=True,
        ),
        footer_reasons=lambda _: [OLD_TYPES] if reason == "old-types" else [],
        reason=lambda _: f"files are rewritten for the reason {reason}",
    )


_VERBS: Mapping[Reason, RewriteVerb[RewriteOptions, RewritePlan, RewriteResult]] = {
    "deleted-rows": _verb("deleted-rows"),
    "old-types": _verb("old-types"),
}


def _verb_of(
    removal: FeatureRemoval,
) -> RewriteVerb[RewriteOptions, RewritePlan, RewriteResult]:
    assert removal.rewrites in ("deleted-rows", "old-types")
    return _VERBS[removal.rewrites]


def planned_rewrite(
    snapshot: Snapshot,
    removal: FeatureRemoval,
    *,
    other_writers: OtherWriters | None,
    now: datetime,
) -> RewritePlan:
    """Plans which files to rewrite. Reads their footers for `old-types`.

    Raises `RefusedError` or `UnsupportedFeatureError` for a table that must not be rewritten.
    """
    options = RewriteOptions(engine="local", other_writers=other_writers)
    return _verb_of(removal).plan(snapshot, options, now=now)


def rewrite_files(
    committer: Committer, removal: FeatureRemoval, *, progress: Progress | None
) -> tuple[int, ...]:
    """Rewrites files until none uses the feature; returns the versions of the commits.

    Raises `RefusedError` if a file cannot be rewritten, `CorruptTableError` if one is damaged, and
    `CommitConflictError` if other writers keep adding such files.
    """
    verb, versions = _verb_of(removal), set[int]()
    for _ in range(_ROUNDS):
        planned = planned_rewrite(
            committer.snapshot(),
            removal,
            other_writers=committer.other_writers,
            now=committer.now(),
        )
        if planned.is_noop:
            return tuple(sorted(versions))
        settings = ApplySettings(now=committer.now, new_id=committer.new_id, progress=progress)
        result = verb.apply(committer.table, planned, planned.options, settings)
        versions |= {each.version for each in result.bins if each.version is not None}
        for refused in result.refused:
            raise left_out(removal.feature, refused.problem, damaged=refused.damaged)
        if result.status in ("failed", "partly"):
            raise left_out(removal.feature, str(result.problem), damaged=False)
    raise CommitConflictError(
        f"other writers keep adding files that use {removal.feature}",
        table=committer.table.uri,
        remedy="run again when fewer writers are at work",
    )


def left_out(feature: str, problem: str, *, damaged: bool) -> DeltaMaintenanceError:
    """The error for a data file that prevents the drop."""
    kind = CorruptTableError if damaged else RefusedError
    return kind(
        f"a data file that uses {feature} is not rewritten: {problem}",
        remedy="repair the file, or rewrite it with the engine that wrote it",
    )


def forget_type_changes(committer: Committer, removal: FeatureRemoval) -> int | None:
    """Commits the schema without the record of type changes.

    Returns the version, or None if there is no such record. Before the commit, the footers of all
    live files are read, to ensure that no file has an earlier type. Raises `CommitConflictError` if
    a file has one, and the error of a footer that cannot be read.
    """
    known = pa.array([], pa.string())
    for _ in range(TRIES):
        snapshot = committer.snapshot()
        after = removal.rewritten(snapshot.metadata)
        if after == snapshot.metadata:
            return None
        known = _checked(snapshot, known)
        transaction = committer.begin(snapshot, "DROP FEATURE", parameters={"columns": "[]"})
        transaction.stage_metadata(after)
        # The files of a later version would not have been checked.
        outcome = transaction.commit(max_attempts=1)
        if isinstance(outcome, Landed | AlreadyDone):
            return outcome.version
    raise CommitConflictError(
        f"other writers committed first, {TRIES} times in a row",
        table=committer.table.uri,
        remedy="run again when fewer writers are at work",
    )


def _checked(snapshot: Snapshot, known: pa.Array) -> pa.Array:
    """Checks that no live file has an earlier type, and returns the paths of the live files."""
    files = live_columns(snapshot)
    unknown = pc.invert(pc.is_in(files.path, value_set=known))
    mask = np.asarray(unknown.to_numpy(), np.bool_)
    contract = Contract.of(snapshot, target_bytes=1, proof="rows")
    reading = FooterReasons(
        store=snapshot.store, spec=contract.spec.files, wanted=[OLD_TYPES], strict=True
    )
    found = np.flatnonzero(reading(files, mask)[OLD_TYPES])
    if len(found):
        raise CommitConflictError(
            "another writer added a file with an earlier type of a column",
            table=snapshot.table,
            version=snapshot.version,
            file=files.path[int(found[0])].as_py(),
            remedy="run again",
        )
    return files.path.combine_chunks()
