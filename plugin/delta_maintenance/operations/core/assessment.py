"""The assessment of a table: its state compared with its policy, and what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from delta_maintenance import clock
from delta_maintenance.clock import SKEW
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.freed import Freed
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import known
from delta_maintenance.operations.holds.models import HeldBack
from delta_maintenance.quantities import duration_text

if TYPE_CHECKING:
    from delta_maintenance.operations.core.rules import RulesInForce
    from delta_maintenance.operations.health import TableHealth
    from delta_maintenance.table.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun(Record):
    """The time of the last run of an operation, because operations without a commit leave no trace
    in the log.

    The caller stores these records: `RunResult.last_runs` contains the updated ones.
    """

    operation: str
    at: Instant
    """When the run began."""
    version: int
    """The version of the table afterwards."""
    status: str
    """The status in the operation's Result; `failed` without a Result."""
    held: tuple[HeldBack, ...] = ()
    """The files that the run, or the last one that counted them, kept for their holders."""
    table_id: str | None = None
    """The ID in the table's metadata; the run says nothing about another table at its address."""
    freed: Freed | None = None
    """What became of the files of the last run that deleted some."""
    corruption: str | None = None
    """The corruption of the table that the operation reported, with the remedy; None if a later
    `fsck` found none."""

    @property
    def succeeded(self) -> bool:
        """Whether the run succeeded, so that it need not be repeated at once."""
        return self.outcome.succeeded

    @property
    def outcome(self) -> Outcome:
        """The outcome; a failure if the operation is no longer installed."""
        record = known(self.operation)
        return Outcome.FAILED if record is None else record.outcome_of(self.status)


class _OptionsOfOperation:
    """Reads and writes Options as JSON, according to the operation named before them."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.with_info_plain_validator_function(
            _read_options,
            serialization=core_schema.plain_serializer_function_ser_schema(_written_options),
        )


def _read_options(value: Any, info: Any) -> Record | None:
    if value is None or isinstance(value, Record):
        return value
    record = known(info.data.get("operation", ""))
    if record is None or not value:
        return None
    try:
        options: Record = record.options.from_json(value)
    except InvalidRequestError:
        # Records of other releases stay readable; a run makes a new assessment first.
        return None
    return options


def _written_options(options: Record | None) -> Mapping[str, Any]:
    return {} if options is None else options.to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPart(Record):
    """A part of an operation that can be run by itself, after the parts before it."""

    bytes: int
    saves_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessedOperation(Record):
    """One operation that the policy or a person requests."""

    operation: str
    status: Literal["due", "not-due", "blocked", "deferred"]
    """`blocked`: due, but prevented by a condition that a person must change, or by the maintenance
    hours. `deferred`: due, but other work comes first within the budget of the policy."""
    reason: str
    """One sentence."""
    due_at: Instant | None = None
    """When it will be due, or may run, as far as that depends on time alone."""
    due_since: Instant | None = None
    """When an assessment found it due first; None if it is not due, or for a first assessment."""
    engine: Literal["local", "spark"] = "local"
    options: Annotated[Record | None, _OptionsOfOperation()] = None
    """The Options of the operation; None if it is not to be run."""
    needs_approval: bool = False
    rule_from: str | None = None
    """The property of the table that the rule comes from; None if the policy has the rule."""
    by_calendar: bool = False
    """Whether it is due because of the time alone, so that only a run finds out whether there is
    work."""
    commits_to_replay: int | None = None
    """The number of commit files that a reader opens now, counting compactions as one; None if the
    operation does not affect it.
    """
    commits_to_replay_after: int | None = None
    bytes_to_read: int = 0
    """The approximate cost, as far as the log shows it."""
    bytes_to_copy: int = 0
    """Of these bytes, those that are copied without being decoded."""
    requests: int = 0
    """The approximate number of requests to the store."""
    reclaims_files: int = 0
    """The expected benefit, as far as the log shows it; it may be greater."""
    reclaims_bytes: int = 0
    saves_files: int = 0
    """By how many the number of live files becomes smaller."""
    parts: tuple[WorkPart, ...] = ()
    """The parts of an operation that `max_bytes` of its Options can end, in their order."""

    @property
    def state(
        self,
    ) -> Literal["due", "needs-approval", "to-check", "not-due", "blocked", "deferred"]:
        """The status as people see it: whether a due operation has work, which may need an
        approval, or looks for some."""
        if self.status != "due":
            return self.status
        return (
            "to-check" if self.by_calendar else "needs-approval" if self.needs_approval else "due"
        )


_LISTED_AT_ONCE = 1000
"""The number of files that one request lists."""

Value = TypeVar("Value")
O = TypeVar("O", bound=Record)  # noqa: E741  the Options of an operation


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """The state of a table, and the rules of its policy."""

    snapshot: Snapshot
    health: TableHealth
    rules: RulesInForce
    now: datetime
    last_runs: Mapping[str, LastRun]
    is_due: Callable[[str], bool]
    """Whether another operation is due."""

    def rule(self, key: str, kind: type[Value]) -> Value | None:
        """Returns the value of an operation's key in the policy, if any."""
        value = self.rules.value(key)
        return value if isinstance(value, kind) else None

    def options(self, kind: type[O], rule: Iterable[tuple[str, Any]] = (), **own_values: Any) -> O:
        """Returns the Options of an operation: the keys of its rule, and what the rules of the
        table say of engines, writers and holders, as far as the Options have these fields.

        `own_values` take precedence; None leaves the default of the Options. Raises
        `InvalidRequestError` for a value that the Options do not allow.
        """
        engine = self.rules.engine
        values = {
            "engine": engine.prefer,
            "auto_spark_bytes": engine.spark_log_bytes,
            "auto_spark_files": engine.spark_files,
            "other_writers": self.rules.other_writers,
            "quiet": self.rules.quiet,
            "holders": self.rules.holders,
            **dict(rule),
            **own_values,
        }
        names = (field.name for field in fields(kind))
        given = {name: values[name] for name in names if values.get(name) is not None}
        return kind(**given).validated()

    def last_run(self, name: str) -> LastRun | None:
        """Returns the last successful run, if there is a record of it."""
        run = self.last_runs.get(name)
        return run if run is not None and run.succeeded else None

    def since_last_run(self, name: str, every: timedelta) -> tuple[str, datetime | None]:
        """Returns `since` for the last successful run."""
        last_run = self.last_run(name)
        return since(name, None if last_run is None else last_run.at, every, self.now)


def not_due(name: str, reason: str, due_at: datetime | None = None) -> AssessedOperation:
    """An operation that is not due."""
    return AssessedOperation(operation=name, status="not-due", reason=reason, due_at=due_at)


def block(name: str, reason: str) -> AssessedOperation:
    """An operation that is due but blocked until a person changes something."""
    return AssessedOperation(operation=name, status="blocked", reason=reason)


def since(
    name: str, last: datetime | None, every: timedelta, now: datetime
) -> tuple[str, datetime | None]:
    """Returns whether the operation is due by the calendar, as a reason, and when it will
    be due.
    """
    if last is None:
        interval = duration_text(every)
        return f"no run of {name} is recorded, and the policy asks for one every {interval}", None
    if last - now > SKEW:
        return f"the last {name} is recorded for {clock.text(last)}, which is yet to come", None
    if now - last >= every:
        return (
            f"the last {name} was at {clock.text(last)}, more than {duration_text(every)} ago",
            None,
        )
    return f"the last {name} was at {clock.text(last)}", last + every


def requests_to_list(files: int) -> int:
    """Returns the number of requests that list this many files."""
    return -(-files // _LISTED_AT_ONCE)
