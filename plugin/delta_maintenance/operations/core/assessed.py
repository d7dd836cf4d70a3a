"""What policies keep and tell of one operation on one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.core.registry import known


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun(Record):
    """When an operation was last run, which no log tells of those that leave no commit.

    Whoever runs operations keeps these: `RunResult.last_runs` has them brought up to date.
    """

    operation: str
    at: Instant
    """When it began."""
    version: int
    """Of the table afterwards."""
    status: str
    """Of the operation's Result; `failed` where there is none."""

    @property
    def succeeded(self) -> bool:
        """Whether it did what it was to do, so that it need not be done again at once."""
        return self.outcome.succeeded

    @property
    def outcome(self) -> Outcome:
        """How it ended; of an operation that is no longer installed, as a failure."""
        record = known(self.operation)
        return Outcome.FAILED if record is None else record.outcome_of(self.status)


class _OptionsOfOperation:
    """Reads and writes Options as JSON, by the operation that stands before them."""

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
        # What another release has written stays readable; whoever runs it assesses anew.
        return None
    return options


def _written_options(options: Record | None) -> Mapping[str, Any]:
    return {} if options is None else options.to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessedOperation(Record):
    """One operation that the policy, or somebody, asks for."""

    operation: str
    status: Literal["due", "not-due", "blocked"]
    """`blocked`: due but for something that somebody has to change, or for the hour."""
    reason: str
    """One sentence."""
    due_at: Instant | None = None
    """When it will be due, or may run, as far as time alone decides."""
    engine: Literal["local", "spark"] = "local"
    options: Annotated[Record | None, _OptionsOfOperation()] = None
    """Of the operation; None where it is not to be run."""
    needs_approval: bool = False
    commits_to_replay: int | None = None
    """Files of commits that a reader opens now, compactions for one; None where the operation makes
    no difference."""
    commits_to_replay_after: int | None = None
    bytes_to_read: int = 0
    """What it costs, about, as far as the log tells."""
    requests: int = 0
    """To the store, likewise."""
    reclaims_files: int = 0
    """What it brings, as far as the log tells; it may be more."""
    reclaims_bytes: int = 0
