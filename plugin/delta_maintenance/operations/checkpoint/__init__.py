"""Writes checkpoints, so that readers need not replay the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, count_text, instant_text, size_text
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Count, Instant, Record

if TYPE_CHECKING:
    from delta_maintenance.operations.checkpoint.operation import apply, plan


CheckpointKind = Literal["auto", "classic", "v2-classic", "v2-json", "v2-parquet"]
"""`classic` is V1. The others are V2: one file under the classic name, or a UUID-named top-level
file as JSON or Parquet. `auto` follows the table's `delta.checkpointPolicy`.
"""

Engine = Literal["auto", "local", "spark"]

Incremental = Literal["auto", "never", "always"]
"""Whether sidecars of the previous checkpoint are taken over: `auto` if that is possible and writes
less, `always` or an error if it is not possible, or `never`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions(Record):
    """Options of a checkpoint."""

    kind: CheckpointKind = policy_option(
        "auto",
        "`classic` is V1; the others are V2: one file under the classic name, or a UUID-named "
        "top-level file as JSON or Parquet; `auto`, the default, follows the table's "
        "`delta.checkpointPolicy`",
        group="common",
    )
    actions_per_sidecar: Count = policy_option(
        50_000,
        "for V2 checkpoints: the maximum number of file actions per sidecar, by default "
        "{default}; 0 keeps them in the top-level file",
    )
    """Tables with less than a few million files get smaller sidecars, so that the removal of one
    file rewrites little."""
    incremental: Incremental = option(
        "auto",
        "for V2 checkpoints: take over the sidecars of the newest checkpoint without files that a "
        "later commit has added or removed. `auto`, the default, does so if that writes less; "
        "`always` fails if that is not possible; with `never`, all sidecars are written",
        group="common",
    )
    time_zone: str | None = policy_option(
        None,
        "IANA name of the time zone of partition values of type timestamp that have no zone, such "
        "as Europe/Paris; only needed if the table sets `delta.checkpoint.writeStatsAsStruct`",
        metavar="Z",
    )
    engine: flags.Engine = "auto"
    auto_spark_bytes: int = 8 << 30
    """For `engine="auto"`: the number of bytes of log from which on Spark is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan(Plan):
    """The planned checkpoint, and its reason."""

    kind: Literal["classic", "v2-classic", "v2-json", "v2-parquet"] | None
    """None if there is nothing to do."""
    engine: Literal["local", "spark"]
    reason: str
    """One sentence: the reason for the kind and the engine, or why there is nothing to do."""
    log_bytes: int
    """The size of the log files that make up the version, in bytes."""
    commits_since_checkpoint: int
    time_zone: str | None
    tombstones_from: Instant | None
    """Tombstones deleted before this instant are expired and left out; None keeps all."""
    transactions_from: Instant | None
    """Transactions last updated at or before this instant are left out; None keeps all."""
    actions_per_sidecar: int = 0
    """0 for a checkpoint without sidecars."""
    incremental: bool = False
    """Whether sidecars of the newest checkpoint are to be taken over."""
    incremental_option: Incremental = "auto"
    """The option from which `apply` decides again if the log has changed."""
    expected_bytes: int | None = None
    """Bytes that `apply` is expected to write; None if only Spark executors can tell."""
    expected_full_bytes: int | None = None
    """Bytes that a full checkpoint is expected to have."""
    expected_incremental_bytes: int | None = None
    """Bytes that an incremental one is expected to write; None if it is not possible, or if only
    Spark executors can tell.
    """

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would write nothing."""
        return self.kind is None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult(Result):
    """The written checkpoint."""

    status: Literal["written", "already-there", "nothing-to-do"]
    kind: Literal["classic", "v2-classic", "v2-json", "v2-parquet"] | None = None
    engine: Literal["local", "spark"] = "local"
    path: str | None = None
    """The top-level file, relative to the table root."""
    incremental: bool = False
    """Whether sidecars of an earlier checkpoint were taken over."""
    sidecars: int = 0
    """The number of all sidecars of the checkpoint."""
    sidecars_taken_over: int = 0
    bytes_written: int = 0
    """The size of the top-level file and of the new sidecars."""
    actions: int = 0
    """The number of rows of the checkpoint."""
    num_files: int = 0
    num_tombstones: int = 0
    expired_tombstones: int = 0
    """The number of expired tombstones that were left out."""
    expired_tombstones_kept: int = 0
    """The number of expired tombstones in sidecars that were taken over. Rewriting a sidecar drops
    them.
    """
    hint_updated: bool = False
    """Whether `_last_checkpoint` points to this checkpoint; it never moves to an older version."""


def plan_facts(plan: CheckpointPlan) -> Facts:
    """The kind of the checkpoint, what it leaves out, and what it costs."""
    facts: dict[str, object] = {
        "kind": plan.kind,
        "engine": plan.engine,
        "reason": plan.reason,
        "log": f"{size_text(plan.log_bytes)}, "
        f"{count_text(plan.commits_since_checkpoint, 'commit')} since the last checkpoint",
    }
    if plan.actions_per_sidecar:
        facts["sidecars"] = f"of at most {count_text(plan.actions_per_sidecar, 'action')}"
    if plan.incremental:
        facts["incremental"] = "sidecars of the last checkpoint are taken over"
    for name, size in (
        ("to write", plan.expected_bytes),
        ("a full one", plan.expected_full_bytes),
        ("an incremental one", plan.expected_incremental_bytes),
    ):
        if size is not None:
            facts[name] = f"about {size_text(size)}"
    for name, since, age in (
        ("tombstones", plan.tombstones_from, "older than"),
        ("transactions", plan.transactions_from, "not updated since"),
    ):
        if since is not None:
            facts[name] = f"those {age} {instant_text(since)} are left out"
    return facts


def result_facts(result: CheckpointResult) -> Facts:
    """The written files, and the contents of the checkpoint."""
    facts: dict[str, object] = {
        "kind": result.kind,
        "engine": result.engine if result.status == "written" else None,
        "path": result.path,
    }
    if result.sidecars:
        taken = result.sidecars_taken_over
        facts["sidecars"] = f"{result.sidecars:,}" + (f", {taken:,} taken over" if taken else "")
    if result.status == "written":
        facts["written"] = size_text(result.bytes_written)
        facts["files"] = result.num_files
        facts["tombstones"] = ", ".join(
            f"{count:,}{suffix}"
            for count, suffix in (
                (result.num_tombstones, ""),
                (result.expired_tombstones, " expired ones left out"),
                (result.expired_tombstones_kept, " expired ones in sidecars taken over"),
            )
            if count
        )
        facts["_last_checkpoint updated"] = result.hint_updated
    return facts


RECORD = OperationRecord(
    name="checkpoint",
    title="Write a checkpoint",
    purpose="log",
    summary="write a checkpoint, so that the table opens fast",
    description=(
        "Write the state of a version as a checkpoint, so that readers need not replay its log. "
        "Adds no version and deletes nothing. The checkpoint is read back and compared before "
        "readers can see it."
    ),
    options=CheckpointOptions,
    plan=CheckpointPlan,
    result=CheckpointResult,
    code="delta_maintenance.operations.checkpoint.operation",
    outcomes={
        "written": Outcome.DONE,
        "already-there": Outcome.DONE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(adds_files=True),
    requires=("checkpoint",),
    spark=SparkPart(
        engine="delta_maintenance.spark.sidecars:SparkSidecars",
        pins_version=True,
        require="delta_maintenance.operations.checkpoint.operation:require_possible",
    ),
    policy=PolicyPart(
        key="checkpoint",
        rule="delta_maintenance.operations.checkpoint.policy:CheckpointRule",
        description="Checkpoints.",
        due="delta_maintenance.operations.checkpoint.policy:due",
    ),
    plan_facts=plan_facts,
    result_facts=result_facts,
    takes_version=True,
    reuses_snapshot=True,
    decisive=("kind",),
    wrote=lambda result: result.status == "written",
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
