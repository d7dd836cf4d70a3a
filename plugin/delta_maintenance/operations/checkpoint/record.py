"""The record of the operation `checkpoint`."""

from __future__ import annotations

from delta_maintenance.operations.checkpoint.options import (
    CheckpointOptions,
    CheckpointPlan,
    CheckpointResult,
)
from delta_maintenance.operations.core.facts import Facts, count_text, instant_text, size_text
from delta_maintenance.operations.core.operation import (
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Outcome


def plan_facts(plan: CheckpointPlan) -> Facts:
    """The kind of the checkpoint, what it leaves out, and what it costs."""
    facts: dict[str, object] = {
        "table": plan.table,
        "version": plan.version,
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
    for name, since, what in (
        ("tombstones", plan.tombstones_from, "older than"),
        ("transactions", plan.transactions_from, "not updated since"),
    ):
        if since is not None:
            facts[name] = f"those {what} {instant_text(since)} are left out"
    return facts | {"notes": plan.notes}


def result_facts(result: CheckpointResult) -> Facts:
    """The written files, and the contents of the checkpoint."""
    facts: dict[str, object] = {
        "table": result.table,
        "version": result.version,
        "status": result.status,
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
            f"{count:,}{what}"
            for count, what in (
                (result.num_tombstones, ""),
                (result.expired_tombstones, " expired ones left out"),
                (result.expired_tombstones_kept, " expired ones in sidecars taken over"),
            )
            if count
        )
        facts["_last_checkpoint updated"] = result.hint_updated
    return facts | {"notes": result.notes}


RECORD = OperationRecord(
    name="checkpoint",
    title="Write a checkpoint",
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
        engine="delta_maintenance.spark.sidecars:SparkSidecars.of_job",
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
