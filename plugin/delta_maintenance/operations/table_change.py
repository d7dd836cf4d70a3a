"""What operations share that change the protocol and the metadata of a table.

`upgrade-protocol`, `set-properties` and `add-constraint` decide by pure rules what the
table is to become, say who is cut off, and commit it once. A plan is carried out only while the
table would still be changed in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, Literal

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError, RefusedError
from delta_maintenance.operations.record import Record
from delta_maintenance.protocol.actions import DomainMetadata, Metadata, Protocol
from delta_maintenance.protocol.client_support import impacts
from delta_maintenance.protocol.feature_enablement import (
    ChangeRequest,
    TableChange,
    changed_table,
)
from delta_maintenance.protocol.protocol_upgrade import added_features
from delta_maintenance.protocol.staged_actions import StagedActions
from delta_maintenance.table.commit_gates import OtherWriters, require_committable
from delta_maintenance.table.commit_outcome import AlreadyDone, Conflicted, Landed, Outcome
from delta_maintenance.table.snapshot import Snapshot
from delta_maintenance.table.table import Table
from delta_maintenance.table.transaction import Transaction

Status = Literal["committed", "already-done", "nothing-to-do", "conflict"]
"""`conflict`: others changed the table since it was planned, and nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolVersions(Record):
    """A protocol as it stands in the log; a list is None where it has none."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None

    @classmethod
    def of(cls, protocol: Protocol) -> ProtocolVersions:
        """The same of a snapshot."""
        return cls(
            min_reader_version=protocol.min_reader_version,
            min_writer_version=protocol.min_writer_version,
            reader_features=protocol.reader_features,
            writer_features=protocol.writer_features,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyChange(Record):
    """One property of the table that gets another value."""

    name: str
    before: str | None
    """None where it is not set."""
    after: str | None
    """None where it is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff(Record):
    """A client that can do less with the table afterwards, or may."""

    client: str
    reading: Literal["stays", "ends", "may end", "was closed"]
    writing: Literal["stays", "ends", "may end", "was closed"]
    features: tuple[str, ...]
    """What stands in its way; empty where it is a version of the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a table is to become, and how the commit is named."""

    operation: str
    parameters: Mapping[str, Any]
    before: TableChange
    after: TableChange
    domains: tuple[DomainMetadata, ...] = ()
    drops: tuple[str, ...] = ()
    """Features of drafts that give way to final ones."""
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[PropertyChange, ...]:
        """The properties that get other values, by name."""
        old, new = self.before.metadata.configuration, self.after.metadata.configuration
        return tuple(
            PropertyChange(name=name, before=old.get(name), after=new.get(name))
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        )

    @property
    def is_noop(self) -> bool:
        """Whether the table is so already."""
        return (self.after.protocol, self.after.metadata, self.domains) == (
            self.before.protocol,
            self.before.metadata,
            (),
        )

    @property
    def changes_schema(self) -> bool:
        """Whether the schema string is another one."""
        return self.after.metadata.schema_string != self.before.metadata.schema_string

    @property
    def protocol_before(self) -> ProtocolVersions:
        """In force now."""
        return ProtocolVersions.of(self.before.protocol)

    @property
    def protocol_after(self) -> ProtocolVersions:
        """In force then."""
        return ProtocolVersions.of(self.after.protocol)

    @property
    def added_features(self) -> tuple[str, ...]:
        """What the table supports then and not now."""
        return added_features(self.before.protocol, self.after.protocol)

    @property
    def cut_off(self) -> tuple[CutOff, ...]:
        """Whom the change concerns, of the clients that are known."""
        return cut_off_by(self.before.protocol, self.after.protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt to carry out a decision ended."""

    status: Status
    version: int
    """Of the commit; where none was made, the newest one that was looked at."""
    attempts: int = 0
    problem: str | None = None
    """Of a conflict, with its remedy."""


def cut_off_by(before: Protocol, after: Protocol) -> tuple[CutOff, ...]:
    """The clients that can do less, or may, once one protocol gives way to the other."""
    return tuple(
        CutOff(
            client=impact.client,
            reading=_FATES[impact.reading[0].value, impact.reading[1].value],
            writing=_FATES[impact.writing[0].value, impact.writing[1].value],
            features=impact.features,
        )
        for impact in impacts(before, after)
    )


def decide_change(
    snapshot: Snapshot,
    request: ChangeRequest,
    *,
    operation_id: str,
    protocol: Protocol | None = None,
    metadata: Metadata | None = None,
) -> TableChange:
    """What the request makes of the snapshot, or of a table with this protocol and metadata.

    The hidden columns of row tracking are named after the operation. Errors name the table.
    """
    ids = _ids(operation_id)
    try:
        change = changed_table(
            protocol or snapshot.protocol,
            metadata or snapshot.metadata,
            request,
            new_id=lambda: next(ids),
        )
        if change.needs_empty_table and snapshot.counts.num_files:
            raise RefusedError(
                "row tracking cannot be enabled at once on a table that has files, of which there "
                f"are {snapshot.counts.num_files}: they need row IDs first",
                remedy="use backfill-row-ids, which enables it in the end",
            )
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table, version=snapshot.version) from None
    return change


def require_changeable(
    snapshot: Snapshot, decision: Decision, *, other_writers: OtherWriters | None
) -> None:
    """Refuses what the commit would refuse; who else writes need not be said yet."""
    require_committable(
        snapshot,
        _staged(decision),
        drops=decision.drops,
        other_writers=other_writers or "none",
    )


def carry_out(
    table: Table,
    decide: Callable[[Snapshot], Decision],
    *,
    table_id: str | None,
    planned_version: int,
    planned: tuple[object, ...],
    operation_id: str,
    other_writers: OtherWriters | None,
    examine: Callable[[Snapshot], None] | None = None,
    now: Callable[[], datetime] = clock.now,
    new_id: clock.NewId = clock.new_id,
    sleep: Callable[[float], None] = time.sleep,
) -> Ending:
    """Decides anew on the latest version and commits, if that comes to what was `planned`.

    `planned` is the `essence_of` the plan. `examine` looks at the data on which the change depends,
    and raises where it must not be made; then whatever others do to the data is a conflict.
    """
    snapshot = table.snapshot()
    if snapshot.metadata.id != table_id:
        raise RefusedError(
            "another table stands there than the one that was planned for",
            table=table.uri,
            version=snapshot.version,
            remedy="plan again",
        )
    decision = decide(snapshot)
    if decision.is_noop:
        return Ending(status="already-done", version=snapshot.version)
    again = essence_of(decision.protocol_before, decision.protocol_after, decision.changes)
    if again != planned:
        return Ending(
            status="conflict",
            version=snapshot.version,
            problem=f"the table was changed since version {planned_version}, for which this was "
            "planned; plan again",
        )
    if examine is not None:
        examine(snapshot)
    transaction = Transaction(
        snapshot,
        decision.operation,
        parameters=decision.parameters,
        operation_id=operation_id,
        planned_version=planned_version,
        other_writers=other_writers,
        now=now,
        new_id=new_id,
    )
    staged = _staged(decision)
    if staged.protocol is not None:
        transaction.stage_protocol(staged.protocol, drops=decision.drops)
    if staged.metadata is not None:
        transaction.stage_metadata(staged.metadata)
    for domain in decision.domains:
        transaction.stage_domain(domain.domain, domain.configuration)
    if decision.after.needs_empty_table or examine is not None:
        # A file that somebody adds meanwhile may lack what the table promises of every file.
        transaction.read_whole_table()
    return _ending(transaction.commit(sleep=sleep))


def essence_of(
    protocol_before: ProtocolVersions,
    protocol_after: ProtocolVersions,
    changes: tuple[PropertyChange, ...],
) -> tuple[object, ...]:
    """What must be the same for a plan still to hold."""
    return protocol_before, protocol_after, changes


_FATES: Mapping[tuple[str, str], Literal["stays", "ends", "may end", "was closed"]] = {
    ("yes", "yes"): "stays",
    ("yes", "no"): "ends",
    ("yes", "unknown"): "may end",
    ("unknown", "yes"): "stays",
    ("unknown", "no"): "ends",
    ("unknown", "unknown"): "may end",
    ("no", "yes"): "was closed",
    ("no", "no"): "was closed",
    ("no", "unknown"): "was closed",
}


def _staged(decision: Decision) -> StagedActions:
    before, after = decision.before, decision.after
    return StagedActions(
        protocol=after.protocol if after.protocol != before.protocol else None,
        metadata=after.metadata if after.metadata != before.metadata else None,
        domains=decision.domains,
    )


def _ending(outcome: Outcome) -> Ending:
    match outcome:
        case Landed(version=version, attempts=attempts):
            return Ending(status="committed", version=version, attempts=attempts)
        case AlreadyDone(version=version):
            return Ending(status="already-done", version=version)
        case Conflicted(version=version, attempts=attempts, conflict=conflict):
            return Ending(
                status="conflict",
                version=version,
                attempts=attempts,
                problem=f"{conflict.explanation}; {conflict.remedy}",
            )
    raise AssertionError("only commits of files alone can be superseded")


def _ids(operation_id: str) -> Iterator[str]:
    """Names that a second look at the same operation gives again."""
    yield operation_id
    for number in count(1):
        yield f"{operation_id}-{number}"
