"""The arguments of an operation besides the table and its Options: one record for every caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from delta_maintenance import clock
from delta_maintenance.address import Address, StoreKind
from delta_maintenance.clock import Clock, NewId, as_clock
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.table.progress import Progress

if TYPE_CHECKING:
    from delta_maintenance.table.commit.other_writers import DeclaredWriters
    from delta_maintenance.table.commit.transaction import Writer
    from delta_maintenance.table.read.snapshot import Snapshot
    from delta_maintenance.table.read.table import Table

P = TypeVar("P", covariant=True)
R = TypeVar("R", covariant=True)


def _no_options(_: str) -> Mapping[str, str] | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Clock, IDs, engine, progress and addresses of one run of an operation."""

    # The clock is looked up late, because tests replace it.
    started: datetime = field(default_factory=lambda: clock.now())
    """The start of the run, as of which a plan is made. Create the context before the table is
    opened, so that later commits do not look older than they are."""
    now: Clock = field(default_factory=lambda: clock.now)
    new_id: NewId = field(default_factory=lambda: clock.new_id)
    sleep: Callable[[float], None] = time.sleep
    """Waits between the attempts of a commit, in seconds."""
    engine: Any = None
    """The engine for distributed work; None works in this process."""
    progress: Progress | None = None
    plan_only: bool = False
    """Whether the plan is not applied, so that reading is enough."""
    writes: bool = False
    """Whether the operation writes to tables, so that a version that its log contradicts is
    refused. `Operation.prepare` sets it."""
    version: int | None = None
    """The version to work on, for operations that accept one; None is the latest."""
    report: str | None = None
    """The address of a new Parquet file for the exact list of files or findings."""
    storage_options: Callable[[str], Mapping[str, str] | None] = _no_options
    """Returns the storage options for an address other than the table's: a report, an inventory."""
    warn: Callable[[Sequence[str]], None] | None = None
    """Receives the problems that were skipped when the table was opened."""

    newest: Callable[[], Snapshot] | None = None
    """Opens the latest version, if the caller has looked at the table before; by default, it is
    opened from scratch."""

    @classmethod
    def at(cls, moment: datetime | Clock, **parts: Any) -> Self:
        """Returns a context whose run starts at this instant, or at that of the clock."""
        now = as_clock(moment)
        return cls(started=now(), now=now, **parts)

    def without_engine(self) -> Self:
        """Returns the context for work in this process."""
        return replace(self, engine=None)

    def require_engine(self, plan: Any) -> None:
        """Raises `InvalidRequestError` if the plan is for Spark, and the context has no engine."""
        if plan.engine == "spark" and self.engine is None:
            raise InvalidRequestError(
                "the plan is for Spark",
                table=plan.table,
                version=plan.version,
                remedy="submit the Spark job, or plan with --engine local",
            )

    def writer(self, writers: DeclaredWriters) -> Writer:
        """Returns the settings of all commits of the run."""
        from delta_maintenance.table.commit.transaction import Writer

        return Writer(
            other_writers=writers.other_writers,
            quiet=writers.quiet,
            now=self.now,
            new_id=self.new_id,
            sleep=self.sleep,
        )

    def snapshot_of(self, table: Table) -> Snapshot:
        """Opens the version to work on, and passes on its warnings.

        Raises `CorruptTableError` instead if the operation writes and opening has shown that the
        log contradicts the version.
        """
        if self.newest is not None and self.version is None:
            snapshot = self.newest()
        else:
            snapshot = table.snapshot(version=self.version)
        if self.writes:
            snapshot.require_agreement()
        if self.warn is not None:
            self.warn(snapshot.warnings)
        return snapshot


class FileListing(Protocol):
    """The exact list behind a plan, which is too long for the Plan."""

    def json_lists(self) -> Iterator[tuple[str, Iterable[Any]]]:
        """Additional contents of the JSON of a dry run: names, and streams of JSON values."""

    def lines(self, *, reported: bool) -> Iterator[str]:
        """The list for people, tab-separated. With `reported` the files are in a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(Generic[P, R]):
    """A plan, and a function that applies it with the information that planning gathered."""

    plan: P
    apply: Callable[[], R]
    listing: FileListing | None = None


def options_for(
    address: str, given: Mapping[str, str], *, kind: StoreKind | None = None
) -> Mapping[str, str] | None:
    """Returns the options of the table's store for another address; None if that is on a local
    disk, or if `kind` is the kind of the table's store and the address is in another one.
    """
    parsed = Address.parse(address)
    return None if parsed.is_local or kind not in (None, parsed.kind) else given
