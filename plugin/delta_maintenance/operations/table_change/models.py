"""What operations that change protocol and metadata decide, plan and answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.protocol.actions.model import DomainMetadata, Protocol
from delta_maintenance.protocol.changes.client_support import impacts
from delta_maintenance.protocol.changes.enable import TableChange
from delta_maintenance.protocol.changes.upgrade import added_features
from delta_maintenance.table.commit.preconditions import OtherWriters
from delta_maintenance.table.read.snapshot import Snapshot

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
class ChangeOptions(Record):
    """What all these operations take, whatever they change."""

    other_writers: OtherWriters | None = None
    """Who else commits to the table; has to be said of tables on S3."""
    operation_id: str | None = None
    """Of the task: run again, it ends as done. By default a new one for each plan."""
    operation_since: Instant | None = None
    """When the task first began: with an `operation_id`, older commits are not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan(Record):
    """What `apply` will change, and for whom."""

    table: str
    table_id: str | None
    version: int
    planned_at: datetime
    operation_id: str
    options: ChangeOptions
    is_noop: bool
    """Whether `apply` would commit nothing."""
    reason: str
    """One sentence."""
    changes: tuple[PropertyChange, ...]
    """Those that follow from others included."""
    protocol_before: ProtocolVersions
    protocol_after: ProtocolVersions
    added_features: tuple[str, ...]
    """Those that were implied before are not among them."""
    cut_off: tuple[CutOff, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        options: ChangeOptions,
        decision: Decision,
        *,
        operation_id: str,
        now: datetime,
        reason: str,
        **more: Any,
    ) -> Self:
        """The plan to carry out a decision; `more` are the fields that one operation adds."""
        return cls(
            table=snapshot.table,
            table_id=snapshot.metadata.id,
            version=snapshot.version,
            planned_at=now,
            operation_id=operation_id,
            options=options,
            is_noop=decision.is_noop,
            reason=reason,
            changes=decision.changes,
            protocol_before=decision.protocol_before,
            protocol_after=decision.protocol_after,
            added_features=decision.added_features,
            cut_off=decision.cut_off,
            notes=(*decision.notes, *snapshot.warnings),
            **more,
        )


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

    @classmethod
    def nothing(cls, snapshot: Snapshot) -> Self:
        """To leave the table as it is."""
        now = TableChange(protocol=snapshot.protocol, metadata=snapshot.metadata)
        return cls(operation="", parameters={}, before=now, after=now)

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
    """Versions tried."""
    problem: str | None = None
    """Of a conflict, with its remedy."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult(Record):
    """What was changed."""

    table: str
    version: int
    """Of the commit; where none was made, the newest one that was looked at."""
    status: Status
    attempts: int = 0
    """Versions tried."""
    added_features: tuple[str, ...] = ()
    problem: str | None = None
    """Why there is a conflict, and what to do."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: ChangePlan, ending: Ending, **more: Any) -> Self:
        """What came of a plan; `more` are the fields that one operation adds."""
        return cls(
            table=plan.table,
            version=ending.version,
            status=ending.status,
            attempts=ending.attempts,
            added_features=plan.added_features if ending.status == "committed" else (),
            problem=ending.problem,
            notes=ending.notes,
            **more,
        )


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
