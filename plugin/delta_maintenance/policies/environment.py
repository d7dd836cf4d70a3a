"""The environment of a run: its clock, its IDs, its progress, and the way to Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from delta_maintenance import clock
from delta_maintenance.operations.core.assessed import AssessedOperation
from delta_maintenance.policies.approval import ApprovedPlan
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.paused import PausedRun
from delta_maintenance.table.progress import Progress


class SubmitToSpark(Protocol):
    """Runs an operation as a Spark job; returns its Result as JSON, with `plan_only` its Plan.

    `approved` goes into the specification of the job, which plans again and raises `RefusedError`
    for another plan. Raises `JobLeftRunningError` if the job runs on without this process.
    """

    def __call__(
        self,
        table: PolicyTable,
        due: AssessedOperation,
        /,
        *,
        plan_only: bool = False,
        approved: ApprovedPlan | None = None,
    ) -> Mapping[str, Any]: ...


Lease = Callable[[], AbstractContextManager[object]]
"""Keeps other processes from working on the table. Raises `BusyError` if another one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnvironment:
    """The parts of a run that depend on the calling process, not on the table."""

    submit: SubmitToSpark | None = None
    """Submits operations that are planned for Spark; without it they fail."""
    raised: tuple[type[Exception], ...] = ()
    """Errors of `submit` that end the run, because only the caller knows what they mean."""
    lease: Lease | None = None
    """The lease of the table, which a run takes before its first change."""
    progress: Progress | None = None
    paused: PausedRun | None = None
    """The run to continue. Its first job is the one that was left running."""
    # Evaluated late, because tests replace the clock.
    now: clock.Clock = field(default_factory=lambda: clock.now)
    new_id: clock.NewId = field(default_factory=lambda: clock.new_id)

    @contextmanager
    def claiming(self) -> Iterator[Callable[[], object]]:
        """Yields a function that takes the lease when first called. The lease ends with
        the block.
        """
        lease = self.lease
        with ExitStack() as held:
            yield cache(lambda: held.enter_context(lease()) if lease is not None else None)
