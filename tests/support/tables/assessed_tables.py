"""Assessments of imaginary tables, for tests of pages and policies."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from delta_maintenance.operations.checkpoint import CheckpointOptions
from delta_maintenance.operations.health import TableHealth
from delta_maintenance.operations.health.models import (
    CommitPoint,
    LogFiles,
    MaintenanceSeen,
    SizeBucket,
)
from delta_maintenance.operations.holds import HeldBack
from delta_maintenance.operations.vacuum import VacuumOptions, VacuumPlan
from delta_maintenance.policies import (
    AssessedOperation,
    Assessment,
    AssessmentStore,
    LastRun,
    OperationOutcome,
    RunResult,
)
from delta_maintenance.policies.budget.selection import Allotment

NOW = datetime(2026, 11, 21, 6, 40, tzinfo=UTC)


def health(uri: str = "s3://lake/sales/orders", *, seed: int = 0, **changes: Any) -> TableHealth:
    """The health of a table that is written every few minutes and sometimes checkpointed."""
    random = Random(seed)
    newest = 1_000 + random.randrange(9_000)
    every = 20 + random.randrange(60)
    behind = random.randrange(every)
    commits = []
    at = NOW - timedelta(minutes=4)
    for offset in range(200):
        version = newest - offset
        distance = (newest - behind - version) % every
        commits.append(
            CommitPoint(
                version=version,
                timestamp=at,
                bytes=int(math.exp(random.gauss(8.5, 0.9))),
                operation=random.choices(["WRITE", "MERGE", "OPTIMIZE", "DELETE"], [12, 5, 1, 1])[
                    0
                ],
                is_checkpoint=distance == 0 and version <= newest - behind,
                is_compaction=distance != 0 and version % 10 == 9,
            )
        )
        at -= timedelta(minutes=2 + random.expovariate(1 / 9))
    commits.reverse()
    sizes = []
    for power in range(16, 31):
        files = int(
            4_000 * math.exp(-(((power - 23 - seed % 4) / 2.3) ** 2)) * random.uniform(0.7, 1.2)
        )
        if files:
            sizes.append(
                SizeBucket(from_bytes=2**power, files=files, bytes=files * 2**power * 3 // 2)
            )
    num_files = sum(bucket.files for bucket in sizes)
    small = sum(bucket.files for bucket in sizes if bucket.from_bytes < 32 << 20)
    with_vector = int(num_files * random.choice([0, 0, 0.03, 0.2]))
    reclaimable = random.choice([0, 120, 5_400])
    known = TableHealth(
        table=uri,
        table_id="6f0e0d3c-1111-4222-8333-000000000000",
        measured_at=NOW - timedelta(minutes=3),
        version=newest,
        timestamp=commits[-1].timestamp,
        commits_since_checkpoint=behind,
        bytes_since_checkpoint=sum(commit.bytes for commit in commits[len(commits) - behind :]),
        oldest_commit_since_checkpoint=commits[-behind].timestamp if behind else None,
        checkpoint_version=newest - behind,
        checkpoint_kind=random.choice(["classic", "classic", "v2-parquet", "v2-json"]),
        checkpoint_at=commits[-1 - behind].timestamp + timedelta(seconds=20),
        checkpoint_bytes=random.randrange(1 << 18, 1 << 26),
        files_to_open=behind + 2,
        bytes_to_open=random.randrange(1 << 20, 1 << 26),
        oldest_version=max(0, newest - 2_000),
        log_files=(
            LogFiles(kind="commits", files=2_001, bytes=14_300_221),
            LogFiles(kind="checkpoints", files=41, bytes=512_887_112),
            LogFiles(kind="compactions", files=19, bytes=2_188_210),
            LogFiles(kind="hints", files=1, bytes=512),
        ),
        log_bytes=529_376_055,
        expired_log_files=412,
        expired_log_bytes=88_121_023,
        num_files=num_files,
        total_bytes=sum(bucket.bytes for bucket in sizes),
        small_files=small,
        small_file_bytes=32 << 20,
        small_file_share=small / num_files if num_files else 0.0,
        file_sizes=tuple(sizes),
        tombstones=random.randrange(9_000),
        expired_tombstones=reclaimable,
        reclaimable_files=reclaimable,
        reclaimable_bytes=reclaimable * (41 << 20),
        files_with_deletion_vector=with_vector,
        deletion_vector_share=with_vector / num_files if num_files else 0.0,
        deleted_rows=with_vector * 120,
        rows=num_files * 410_000,
        deleted_rows_share=with_vector * 120 / (num_files * 410_000) if num_files else None,
        min_reader_version=3 if with_vector else 1,
        min_writer_version=7,
        features=("appendOnly", "deletionVectors", "invariants", "v2Checkpoint")
        if with_vector
        else ("appendOnly", "invariants"),
        refused=(),
        row_tracking="supported" if with_vector else "unsupported",
        partition_columns=("day",),
        clustering_columns=(),
        log_retention=timedelta(days=30),
        deleted_file_retention=timedelta(days=7),
        properties={
            "delta.checkpointPolicy": "v2",
            "delta.logRetentionDuration": "interval 30 days",
        },
        commits=tuple(commits),
        maintenance=(
            MaintenanceSeen(
                operation="VACUUM END",
                version=commits[60].version,
                timestamp=commits[60].timestamp,
                result="COMPLETED",
            ),
        ),
    )
    return replace(known, **changes)


def assessment(name: str = "orders", *, seed: int = 0, **changes: Any) -> Assessment:
    """An assessment after which a checkpoint is due and a vacuum has to wait."""
    uri = changes.get("uri", f"s3://lake/sales/{name}")
    known = Assessment(
        name=name,
        uri=uri,
        assessed_at=NOW - timedelta(minutes=3),
        status="due",
        operations=(
            AssessedOperation(
                operation="checkpoint",
                status="due",
                reason="121 commits since the checkpoint of version 1000 are more than 100",
                due_since=NOW - timedelta(minutes=3),
                commits_to_replay=121,
                commits_to_replay_after=0,
                bytes_to_read=1_234_567,
                requests=130,
                options=CheckpointOptions(kind="auto"),
            ),
            AssessedOperation(
                operation="vacuum",
                status="not-due",
                reason="the last one was on 2026-11-18",
                due_at=NOW + timedelta(days=4, hours=3),
                engine="spark",
                needs_approval=True,
                reclaims_files=5_400,
                reclaims_bytes=5_400 * (41 << 20),
            ),
        ),
        next_due_at=NOW + timedelta(days=4, hours=3),
        health=health(uri, seed=seed),
    )
    return replace(known, **changes)


def run_result(name: str = "orders", **changes: Any) -> RunResult:
    """A run that wrote a checkpoint, with a vacuum that waits for an approval."""
    at = NOW - timedelta(hours=2)
    known = RunResult(
        name=name,
        uri=f"s3://lake/sales/{name}",
        status="done",
        started_at=at,
        ended_at=at + timedelta(seconds=94),
        outcomes=(
            OperationOutcome(
                operation="checkpoint",
                status="done",
                reason="wrote the checkpoint of version 1121",
                started_at=at,
                seconds=12.4,
                result={"operation": "checkpoint", "status": "written", "version": 1121},
            ),
            OperationOutcome(
                operation="vacuum",
                status="needs-approval",
                reason="somebody has to approve it",
                started_at=at + timedelta(seconds=13),
                engine="spark",
            ),
        ),
        last_runs=(LastRun(operation="checkpoint", at=at, version=1121, status="written"),),
    )
    return replace(known, **changes)


def waiting(name: str, *, seed: int = 0, **numbers: Any) -> tuple[Assessment, RunResult]:
    """A table whose vacuum waits for an approval, and the run that has planned it."""
    asked = assessment(name, seed=seed)
    plan = VacuumPlan(
        table=asked.uri,
        version=3,
        planned_at=numbers.get("planned_at", NOW),
        options=VacuumOptions(),
        engine="local",
        retention=timedelta(days=7),
        delete_before=NOW,
        files=numbers.get("files", 12),
        bytes=numbers.get("bytes", 3 << 30),
        paths_digest="",
        groups=(),
        kept=(),
        listed=numbers.get("listed", 40),
        live_files=18,
        directories=0,
        sample_directories=(),
        large=None,
        logs_commits=False,
        reason="listed",
    )
    due = replace(asked.operations[0], operation="vacuum", needs_approval=True)
    run = run_result(name)
    outcome = replace(
        run.outcomes[1], reason="the last one was on 2026-11-12", result=plan.to_json()
    )
    return replace(asked, operations=(due,)), replace(run, status="blocked", outcomes=(outcome,))


def deferred(name: str, *operations: str, at: datetime = NOW) -> Assessment:
    """An assessment of a table on which a checkpoint and an `optimize` are due, of which these wait
    because of the budget.
    """
    asked = assessment(name, assessed_at=at)
    checkpoint = asked.operations[0]
    reason = "27 files are small, and can become 1"
    optimize = replace(checkpoint, operation="optimize", reason=reason, commits_to_replay=None)
    first = "after 3 operations with more gain for their cost"
    why = f"{first}, it needs 4.1 s, with 1.2 s of the processor time left"
    allotment = Allotment(deferred=dict.fromkeys(operations, why), until=at + timedelta(hours=5))
    return allotment.defer(replace(asked, operations=(checkpoint, optimize)))


def held(count: int, *, seed: int = 0) -> tuple[HeldBack, ...]:
    """Up to four holders of files, most bytes first."""
    size = (seed % 11 + 1) << 28
    version = {"first_version": 1_042, "last_version": 1_042, "why": "annual audit"}
    reading = "has read up to version 1042, last progress 2026-11-17T03:12:09Z"
    later: dict[str, Any] = {"first_version": 1_041, "last_version": None, "why": reading}
    unknown: dict[str, Any] = {"first_version": None, "last_version": None, "why": None}
    until = datetime(2027, 1, 1, tzinfo=UTC)
    found = (
        HeldBack(holder="kept version audit-2026", until=until, files=12, bytes=size, **version),
        HeldBack(holder="stream orders-to-silver", until=None, files=3, bytes=size >> 3, **later),
        HeldBack(
            holder="clone s3://science/experiments/" + "very-long-names/" * 6 + "orders",
            until=None,
            files=1,
            bytes=1_024,
            **unknown,
        ),
        HeldBack(holder="kept version model", until=None, files=0, bytes=0, **version),
    )
    return found[:count]


def fill(store: AssessmentStore, tables: int) -> None:
    """Stores assessments of that many tables: most are healthy, some need attention."""
    words = ("orders", "events", "users", "payments", "sessions", "clicks", "stock", "invoices")
    for seed in range(tables):
        name = f"{('bronze', 'silver', 'gold')[seed % 3]}/{words[seed % 8]}_{seed:04}"
        uri = f"s3://lake/{name}"
        one = assessment(name, seed=seed, uri=uri)
        match seed % 9:
            case 3:
                one = replace(
                    one,
                    status="failed",
                    operations=(),
                    health=None,
                    problem=f"table {uri}: version 212 is missing from the log; "
                    "restore the damaged files from a backup",
                )
            case 5:
                blocked = replace(
                    one.operations[1], status="blocked", reason="outside the maintenance hours"
                )
                one = replace(one, status="blocked", operations=(blocked,))
            case 0 | 1:
                pass
            case _:
                calm = tuple(replace(each, status="not-due") for each in one.operations)
                one = replace(one, status="nothing-due", operations=calm)
        one = replace(one, held=held(seed % 5, seed=seed))
        run = run_result(name, status="done" if seed % 5 else "incomplete") if seed % 4 else None
        store.save(one, run, link=f"/dags/delta_maintenance/runs/r{seed}" if run else None)
