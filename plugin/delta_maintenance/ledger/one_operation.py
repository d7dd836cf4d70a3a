"""One operation that runs without a policy, as a run for the ledger.

Loads what it needs only if there is a ledger, because command lines and Dags import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError, failure_of

if TYPE_CHECKING:
    from delta_maintenance.ledger.rows import DoneBy
    from delta_maintenance.operations.core.freed import Freed
    from delta_maintenance.operations.core.registry import AnyOperation
    from delta_maintenance.policies.measuring import Cost, MeasuredBlock
    from delta_maintenance.policies.models import OperationOutcome, RunResult
    from delta_maintenance.storage import Store


class OneOperation:
    """What is known of an operation while it goes on."""

    def __init__(self, record: AnyOperation, *, plans: bool, is_wanted: bool) -> None:
        self.document: Any = None
        """The Plan or the Result."""
        self.started = clock.now()
        self._record = record
        self._plans = plans
        self._is_wanted = is_wanted
        self._measuring = ExitStack()
        self._store: Store | None = None
        self._measured: MeasuredBlock | None = None
        self._on_spark = False
        self._task_seconds: float | None = None

    def measure(self, store: Store) -> None:
        """Counts the requests of the store of the table from now on."""
        is_first, self._store = self._store is None, store
        if self._is_wanted and is_first:
            from delta_maintenance.policies.measuring import SparkTime, measure_block

            self._measured = self._measuring.enter_context(measure_block(store, SparkTime()))

    def worked_on_spark(self, task_seconds: float | None) -> None:
        """States that the work was done on Spark, and the time of its tasks, if it is known."""
        self._on_spark = True
        self._task_seconds = task_seconds

    @cached_property
    def find_freed(self) -> Freed | None:
        """What becomes of the files that the operation deleted; None if it deleted none, or if a
        job did. The store is asked once.
        """
        if self._store is None or self.document is None or self._plans:
            return None
        if not self._record.done_amounts(self.document).deleted_files:
            return None
        from delta_maintenance.policies.measuring import freed_by

        ask, result = self._store.bytes_of_deleted, self.document.to_json()
        return freed_by(self._record.name, result, ask, now=clock.now())

    def result(self, name: str, failure: Exception | None) -> RunResult:
        """Returns the operation as a run on the table with this name or address."""
        from delta_maintenance.policies.measuring import Cost
        from delta_maintenance.policies.models import RunResult

        self._measuring.close()
        ended = clock.now()
        cost = Cost() if self._measured is None else self._measured.cost
        outcome = outcome_of_document(
            self._record,
            self.document,
            planned=self._plans,
            failure=failure,
            started=self.started,
            seconds=(ended - self.started).total_seconds(),
            cost=replace(cost, spark_task_seconds=self._task_seconds),
        )
        if self._on_spark:
            outcome = replace(outcome, engine="spark")
        opened = name if self._store is None else self._store.root
        return RunResult(
            name=name,
            uri=opened if self.document is None else self.document.table,
            status="failed" if failure is not None else "done",
            started_at=self.started,
            ended_at=ended,
            outcomes=(replace(outcome, freed=self.find_freed),),
        )


@contextmanager
def recording(
    record: AnyOperation,
    deliver: Callable[[RunResult], None] | None,
    *,
    name: Callable[[], str],
    plans: bool,
) -> Iterator[OneOperation]:
    """Delivers the operation of the block to a ledger, if there is one, also if it fails.

    `name` returns the name or the address of the table, once the block has ended.
    """
    operation = OneOperation(record, plans=plans, is_wanted=deliver is not None)
    failure: Exception | None = None
    try:
        yield operation
    except Exception as error:
        failure = error
        raise
    finally:
        if deliver is not None:
            deliver(operation.result(name(), failure))


def delivering_to(
    ledger: str | None,
    *,
    state: str | None = None,
    done_by: DoneBy,
    options: Callable[[str], Mapping[str, str] | None],
    warn: Callable[[Sequence[str]], None],
) -> Callable[[RunResult], None] | None:
    """Returns what delivers operations to the ledger at an address; None without one.

    `options` returns the storage options for an address. Rows that cannot be delivered are kept in
    the `state` folder, which runs of a policy deliver, or are lost without one; `warn` is told so.
    `InvalidRequestError` for an invalid address.
    """
    if ledger is None:
        return None
    # Refused before anything is done.
    address = str(Address.parse(ledger).absolute())
    folder = None if state is None else str(Address.parse(state).absolute())

    def deliver(result: RunResult) -> None:
        from delta_maintenance.ledger.recording import Recorder
        from delta_maintenance.ledger.rows import Origin
        from delta_maintenance.storage import open_store

        state_store = None
        if folder is not None:
            try:
                state_store = open_store(folder, options(folder))
            except DeltaMaintenanceError as error:
                warn([f"the state folder cannot be used: {error}"])
        recorder = Recorder.at(address, lambda: options(address), state=state_store)
        origin = Origin(done_by=done_by, run_id=clock.new_id())
        problems = recorder.record(result, origin)
        warn(problems)

    return deliver


def outcome_of_document(
    record: AnyOperation,
    document: Any,
    *,
    planned: bool,
    failure: Exception | None,
    started: datetime,
    seconds: float,
    cost: Cost | None,
) -> OperationOutcome:
    """Returns the outcome of an operation that ran without a policy.

    `document` is its Plan or its Result; None if it failed or was interrupted before it had one.
    """
    # Loaded here, because most commands have no ledger.
    from delta_maintenance.policies.execute import STATUSES
    from delta_maintenance.policies.models import OperationOutcome

    reason = "requested" if document is not None else "interrupted"
    blank = OperationOutcome(
        operation=record.name,
        status="failed",
        reason=str(failure_of(failure, where=record.name)) if failure is not None else reason,
        started_at=started,
        seconds=seconds,
        cost=cost,
    )
    if document is None:
        return blank
    engine: Literal["local", "spark"] = getattr(document, "engine", "local")
    blank = replace(blank, engine=engine, result=document.to_json())
    if planned:
        return replace(blank, status="planned", reason=document.reason)
    conclusion = record.conclusion(document)
    return replace(
        blank,
        status=STATUSES[conclusion.outcome],
        reason=str(conclusion) or blank.reason,
        commits=record.done_amounts(document).commits,
    )
