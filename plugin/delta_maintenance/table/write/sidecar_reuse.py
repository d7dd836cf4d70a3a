"""Decides which sidecars of a checkpoint the next one takes over, and which are rewritten.

A sidecar does not belong to one checkpoint: a later one may refer to it as long as every file
action in it is in effect ("Sidecar Files", "Action Reconciliation"). Sidecars with a file that a
later commit names are therefore rewritten, and the others are taken over unread. This module writes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.file_columns import PARSED_COLUMNS
from delta_maintenance.protocol.delta_log.checkpoint_rows import FileActionLayout
from delta_maintenance.protocol.delta_log.file_names import SIDECAR_DIRECTORY
from delta_maintenance.protocol.delta_log.sidecars import (
    SparkSchema,
    chosen_for_merge,
    merged_schemas,
    spark_schema,
    stated_schema,
    stated_sums,
)
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.checkpoint_reader import Checkpoint, FileActionBatch
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.log_view import contradiction_error
from delta_maintenance.table.read.segment import list_log
from delta_maintenance.table.read.sidecar_search import SearchedSidecar
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.write.checkpoint_spec import CheckpointSpec

Fate = Literal["keep", "rewrite", "merge", "drop"]
"""`keep`: taken over unchanged. `rewrite`: rewritten, because it contains a file that a later
commit names, or many expired tombstones. `merge`: rewritten together with others of its size.
`drop`: omitted, because it contains only expired tombstones.
"""


class NotReusableError(Exception):
    """No sidecar of the base can be taken over; the message is one clause with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusedSidecar:
    """A sidecar of the base, and its fate."""

    found: SearchedSidecar
    fate: Fate
    expired_tombstones: int

    @property
    def path(self) -> str:
        """The path relative to the table root."""
        return self.found.path

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.found.sidecar.size_in_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseSurvey:
    """The content of an incremental checkpoint of a snapshot, before it is written."""

    base: Checkpoint
    sidecars: tuple[ReusedSidecar, ...]
    new_actions: int
    """File actions of later commits, which go into new sidecars."""

    @property
    def kept(self) -> tuple[ReusedSidecar, ...]:
        """The sidecars that are taken over."""
        return tuple(sidecar for sidecar in self.sidecars if sidecar.fate == "keep")

    @property
    def rewritten(self) -> tuple[ReusedSidecar, ...]:
        """The sidecars that are rewritten, in the order in which they are written."""
        chosen = [sidecar for sidecar in self.sidecars if sidecar.fate == "merge"]
        return (*chosen, *(sidecar for sidecar in self.sidecars if sidecar.fate == "rewrite"))

    @property
    def kept_expired(self) -> int:
        """Expired tombstones that are taken over."""
        return sum(sidecar.expired_tombstones for sidecar in self.kept)

    @property
    def dropped_expired(self) -> int:
        """Expired tombstones in sidecars that are omitted."""
        dropped = (sidecar for sidecar in self.sidecars if sidecar.fate == "drop")
        return sum(sidecar.found.summary.tally.tombstones for sidecar in dropped)

    @property
    def expected_bytes(self) -> int:
        """The estimated bytes of the new sidecars and the top-level file."""
        written = sum(sidecar.size for sidecar in self.rewritten)
        new_bytes = self.new_actions * self._bytes_per_action
        return int(written + new_bytes) + _BYTES_PER_ENTRY * len(self.sidecars)

    @property
    def expected_full_bytes(self) -> int:
        """The estimated bytes of a checkpoint that takes nothing over."""
        total = sum(sidecar.size for sidecar in self.sidecars)
        return int(total + self.new_actions * self._bytes_per_action)

    def with_fields_of_base(self, schema: SparkSchema | None) -> SparkSchema | None:
        """Returns the schema of all sidecars, given that of the new ones; None if there are none.

        Struct statistics that are no longer written are omitted, because new sidecars lack them.
        """
        if not self.kept:
            return schema
        theirs = stated_schema(self.base.singles.checkpoint_metadata[0].tags)
        if theirs is None:
            theirs = spark_schema(self.base.sidecar_schema(self.kept[0].path))
        if schema is None or theirs is None:
            return theirs if schema is None else schema
        return merged_schemas(schema, theirs, without=PARSED_COLUMNS)

    @property
    def _bytes_per_action(self) -> float:
        actions = sum(sidecar.found.summary.tally.actions for sidecar in self.sidecars)
        return sum(sidecar.size for sidecar in self.sidecars) / actions if actions else 0.0


_BYTES_PER_ENTRY = 500
"""The size in bytes of a sidecar action in the top-level file, with its tags."""


def survey_reuse(snapshot: Snapshot, spec: CheckpointSpec) -> ReuseSurvey:
    """Decides which sidecars of the newest checkpoint an incremental one of this snapshot reuses.

    Reads the later commits, the filters of the sidecars, and the paths of sidecars without a
    filter. Raises `NotReusableError` if nothing can be taken over, and `UnusableCheckpointError`
    for a damaged base.
    """
    base = require_reusable(snapshot, spec)
    named_files = snapshot.log.named_in_tail
    searched = snapshot.log.searched_sidecars
    limit = spec.deleted_after_ms
    expired = {
        sidecar.path: require_expired(sidecar, *count_expired(base, sidecar.path, limit))
        for sidecar in with_expired(searched, spec)
        if limit is not None
    }
    return survey_sidecars(
        base,
        searched,
        spec,
        expired=expired,
        adds=named_files.adds,
        tombstones=named_files.tombstones,
    )


def require_reusable(snapshot: Snapshot, spec: CheckpointSpec) -> Checkpoint:
    """Returns the checkpoint whose sidecars may be taken over, judged by its top-level file.

    Raises `NotReusableError` if there is none.
    """
    base = _require_base(snapshot)
    _require_layout(base, spec.layout)
    require_newest(snapshot, base)
    return base


def require_newest(snapshot: Snapshot, base: Checkpoint, *, beside: str | None = None) -> None:
    """Raises `NotReusableError` unless the base is the newest complete checkpoint of the log.

    A log clean-up keeps the sidecars of the newest checkpoint, and may delete those of older ones
    at any time. `beside` is the path of a published checkpoint that takes over sidecars of the
    base. If it is the only other checkpoint left, a clean-up keeps its sidecars, too.
    """
    listing = list_log(snapshot.log.store, first_version=base.files.version)
    newer = [
        files for files in listing.checkpoints if beside is None or files.entries[0].path != beside
    ]
    newest = newer[-1] if newer else None
    if newest is None:
        if beside is not None:
            return
        raise NotReusableError(f"{base.files.name} no longer exists")
    if newest.version > base.files.version:
        raise NotReusableError(f"{newest.name} is newer, and only its sidecars are safe")


def survey_sidecars(
    base: Checkpoint,
    found: Iterable[SearchedSidecar],
    spec: CheckpointSpec,
    *,
    expired: Mapping[str, int],
    adds: int,
    tombstones: int,
) -> ReuseSurvey:
    """Decides the fate of the sidecars, given those that may contain a file that later commits
    name.

    `expired` maps the path of each `with_expired` sidecar to its number of expired tombstones.
    `adds` and `tombstones` are the numbers of new ones, including expired ones.
    """
    sidecars = [_fate(each, expired) for each in found]
    _merge(sidecars, adds=True, new_actions=adds, size=spec.actions_per_sidecar)
    _merge(sidecars, adds=False, new_actions=tombstones, size=spec.actions_per_sidecar)
    return ReuseSurvey(base=base, sidecars=tuple(sidecars), new_actions=adds + tombstones)


def require_found(survey: ReuseSurvey, missing: int) -> None:
    """Raises `NotReusableError` if so many removed files are in no sidecar that is rewritten.

    They may be live in a sidecar that wrong tags or filters did not point to.
    """
    if missing:
        raise NotReusableError(
            f"later commits remove {missing} files that were found in no sidecar of "
            f"{survey.base.files.name}"
        )


def missing_sidecars(store: Store, survey: ReuseSurvey) -> list[str]:
    """Returns the sidecars to be taken over that are missing or have another size, by one
    listing.
    """
    folder = f"{LOG_DIRECTORY}/{SIDECAR_DIRECTORY}"
    sizes = {status.path: status.size for status in store.list_from(folder)}
    return [sidecar.path for sidecar in survey.kept if sizes.get(sidecar.path) != sidecar.size]


def _require_base(snapshot: Snapshot) -> Checkpoint:
    base = snapshot.log.checkpoint
    if base is None:
        raise NotReusableError("the table has no checkpoint yet")
    if not base.is_v2:
        raise NotReusableError(f"{base.files.name} is not a V2 checkpoint")
    if not base.sidecars:
        raise NotReusableError(f"{base.files.name} has no sidecars")
    if base.files.version == snapshot.version:
        raise NotReusableError(f"{base.files.name} is of the same version")
    if len(set(base.sidecar_paths)) < len(base.sidecar_paths):
        raise NotReusableError(f"{base.files.name} names a sidecar twice")
    return base


def _require_layout(base: Checkpoint, layout: FileActionLayout) -> None:
    """Checks that every required form of statistics and partition values is present.

    All sidecars of a checkpoint of this library have the same columns, so one of them is read.
    """
    ours = stated_sums(base.singles.checkpoint_metadata[0].tags) is not None
    for path in base.sidecar_paths[:1] if ours else base.sidecar_paths:
        schema = base.sidecar_schema(path)
        if "add" not in schema.names:
            continue
        if schema.names.count("add") > 1:
            raise NotReusableError(f"a sidecar of {base.files.name} has several columns named add")
        kind = schema.field("add").type
        theirs = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
        for field in layout.add_type:
            if field.name in _CONVERTED and not _same_type(theirs.get(field.name), field.type):
                raise NotReusableError(
                    f"the sidecars of {base.files.name} have no {field.name} "
                    "in the form that the schema and the properties of the table require now"
                )


_CONVERTED = ("stats", *PARSED_COLUMNS)


def _same_type(theirs: pa.DataType | None, ours: pa.DataType) -> bool:
    """Whether two types differ at most in the order and the nullability of fields."""
    if theirs is None or not pa.types.is_struct(ours):
        return bool(theirs == ours)
    if not pa.types.is_struct(theirs):
        return False
    fields_by_name = {field.name: field.type for field in theirs}
    return fields_by_name.keys() == {field.name for field in ours} and all(
        _same_type(fields_by_name[field.name], field.type) for field in ours
    )


def with_expired(
    searched: Iterable[SearchedSidecar], spec: CheckpointSpec
) -> tuple[SearchedSidecar, ...]:
    """Returns the sidecars that have expired tombstones according to their summaries.

    They must be read: the tags alone must not decide that a sidecar is left out.
    """
    limit = spec.deleted_after_ms
    return tuple(
        sidecar
        for sidecar in searched
        if limit is not None
        and sidecar.summary.deleted_first is not None
        and sidecar.summary.deleted_first <= limit
    )


def count_expired(base: Checkpoint, path: str, deleted_after_ms: int) -> tuple[int, int, int]:
    """Counts the adds, the tombstones and the expired tombstones of a sidecar."""
    keys = MapKeys(partition_columns=frozenset())
    fields = {"add": ("path",), "remove": ("path", "deletionTimestamp")}
    batches = base.file_actions(keys=keys, fields=fields, only={path})
    return totals_of(batches, deleted_after_ms)


def totals_of(batches: Iterable[FileActionBatch], deleted_after_ms: int) -> tuple[int, int, int]:
    """Counts the adds, the tombstones and the expired tombstones of batches of a checkpoint."""
    adds = tombstones = expired = 0
    for batch in batches:
        adds += batch.adds.num_rows
        tombstones += batch.removes.num_rows
        expired += expired_in(batch.removes, deleted_after_ms)
    return adds, tombstones, expired


def require_expired(searched: SearchedSidecar, adds: int, tombstones: int, expired: int) -> int:
    """Returns the number of expired tombstones of a sidecar with these contents.

    Raises `CorruptTableError` if its summary states other numbers of actions.
    """
    if (adds, tombstones) != (searched.summary.tally.adds, searched.summary.tally.tombstones):
        raise contradicted_tags(searched.path)
    return expired


def contradicted_tags(path: str) -> CorruptTableError:
    """Returns the error for a sidecar whose contents differ from its tags: either is damaged."""
    return contradiction_error(f"the contents of {path} differ from its tags")


def expired_in(tombstones: pa.Table, deleted_after_ms: int) -> int:
    """Counts the expired tombstones of a checkpoint.

    A tombstone without a time comes from an earlier checkpoint, and counts as expired.
    """
    if not tombstones.num_rows or "deletionTimestamp" not in tombstones.column_names:
        return int(tombstones.num_rows)
    late = pc.sum(pc.greater(tombstones["deletionTimestamp"], deleted_after_ms)).as_py()
    return int(tombstones.num_rows - (late or 0))


def _fate(searched: SearchedSidecar, expired: Mapping[str, int]) -> ReusedSidecar:
    tally, expired_count = searched.summary.tally, expired.get(searched.path, 0)
    fate: Fate = "keep"
    if expired_count == tally.actions:
        fate = "drop"
    elif searched.is_named or (expired_count and 2 * expired_count >= tally.actions):
        fate = "rewrite"
    return ReusedSidecar(found=searched, fate=fate, expired_tombstones=expired_count)


def _merge(sidecars: list[ReusedSidecar], *, adds: bool, new_actions: int, size: int) -> None:
    """Marks the sidecars of one kind that are merged. The kind of a mixed sidecar is that of most
    of its actions.
    """
    positions = [
        at
        for at, sidecar in enumerate(sidecars)
        if sidecar.fate == "keep" and _holds_more_adds(sidecar) == adds
    ]
    sizes = [sidecars[at].found.summary.tally.actions for at in positions]
    for chosen in chosen_for_merge(sizes, new_actions=new_actions, size=size):
        at = positions[chosen]
        sidecars[at] = replace(sidecars[at], fate="merge")


def _holds_more_adds(sidecar: ReusedSidecar) -> bool:
    tally = sidecar.found.summary.tally
    return tally.adds >= tally.tombstones
