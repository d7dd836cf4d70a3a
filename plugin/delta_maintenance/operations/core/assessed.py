"""The assessment of one operation on one table, as policies store and report it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.freed import Freed
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import known
from delta_maintenance.operations.holds.models import HeldBack


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
class AssessedOperation(Record):
    """One operation that the policy or a person requests."""

    operation: str
    status: Literal["due", "not-due", "blocked"]
    """`blocked`: due, but prevented by a condition that a person must change, or by the maintenance
    hours."""
    reason: str
    """One sentence."""
    due_at: Instant | None = None
    """When it will be due, or may run, as far as that depends on time alone."""
    engine: Literal["local", "spark"] = "local"
    options: Annotated[Record | None, _OptionsOfOperation()] = None
    """The Options of the operation; None if it is not to be run."""
    needs_approval: bool = False
    commits_to_replay: int | None = None
    """The number of commit files that a reader opens now, counting compactions as one; None if the
    operation does not affect it.
    """
    commits_to_replay_after: int | None = None
    bytes_to_read: int = 0
    """The approximate cost, as far as the log shows it."""
    requests: int = 0
    """The approximate number of requests to the store."""
    reclaims_files: int = 0
    """The expected benefit, as far as the log shows it; it may be greater."""
    reclaims_bytes: int = 0
