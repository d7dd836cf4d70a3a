"""Decisions and outcomes of operations that change protocol and metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Self, TypeVar

from delta_maintenance.operations.table_change.documents import (
    ChangeOptions,
    ChangePlan,
    CutOff,
    Fate,
    PropertyChange,
    ProtocolVersions,
    Status,
)
from delta_maintenance.protocol.actions.model import DomainMetadata, Protocol
from delta_maintenance.protocol.changes.client_support import impacts
from delta_maintenance.protocol.changes.enable import TableChange
from delta_maintenance.protocol.changes.upgrade import added_features
from delta_maintenance.table.read.snapshot import Snapshot

P = TypeVar("P", bound=ChangePlan)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The future protocol and metadata of a table, and the name of the commit."""

    compared: ClassVar[tuple[str, ...]] = ("protocol_before", "protocol_after", "changes")
    """The properties and fields in which it must equal a plan that is to be applied. A subclass
    that changes something else names that as well.
    """

    operation: str
    parameters: Mapping[str, Any]
    before: TableChange
    after: TableChange
    domains: tuple[DomainMetadata, ...] = ()
    drops: tuple[str, ...] = ()
    """Draft features that are replaced by final ones."""
    notes: tuple[str, ...] = ()
    depends_on_files: bool = False
    """Whether the decision required something of every live file, which files that other writers
    add could violate.
    """

    @classmethod
    def nothing(cls, snapshot: Snapshot) -> Self:
        """The decision to change nothing."""
        now = TableChange(protocol=snapshot.protocol, metadata=snapshot.metadata)
        return cls(operation="", parameters={}, before=now, after=now)

    @property
    def changes(self) -> tuple[PropertyChange, ...]:
        """The properties whose values change, by name."""
        old, new = self.before.metadata.configuration, self.after.metadata.configuration
        return tuple(
            PropertyChange(name=name, before=old.get(name), after=new.get(name))
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        )

    @property
    def is_noop(self) -> bool:
        """Whether the table already has the requested state."""
        return (self.after.protocol, self.after.metadata, self.domains) == (
            self.before.protocol,
            self.before.metadata,
            (),
        )

    @property
    def changes_schema(self) -> bool:
        """Whether the schema string changes."""
        return self.after.metadata.schema_string != self.before.metadata.schema_string

    @property
    def protocol_before(self) -> ProtocolVersions:
        """The protocol before the change."""
        return ProtocolVersions.of(self.before.protocol)

    @property
    def protocol_after(self) -> ProtocolVersions:
        """The protocol after the change."""
        return ProtocolVersions.of(self.after.protocol)

    @property
    def added_features(self) -> tuple[str, ...]:
        """Features that the change adds."""
        return added_features(self.before.protocol, self.after.protocol)

    @property
    def cut_off(self) -> tuple[CutOff, ...]:
        """The known clients that lose access, or may lose it."""
        return cut_off_by(self.before.protocol, self.after.protocol)

    def as_plan(
        self,
        plan: type[P],
        snapshot: Snapshot,
        options: ChangeOptions,
        *,
        operation_id: str,
        now: datetime,
        reason: str,
        **more: Any,
    ) -> P:
        """Builds the plan of an operation; `more` are the fields that only this operation has."""
        return plan(
            table=snapshot.table,
            table_id=snapshot.metadata.id,
            version=snapshot.version,
            planned_at=now,
            operation_id=operation_id,
            options=options,
            is_noop=self.is_noop,
            reason=reason,
            changes=self.changes,
            protocol_before=self.protocol_before,
            protocol_after=self.protocol_after,
            added_features=self.added_features,
            cut_off=self.cut_off,
            notes=(*self.notes, *snapshot.warnings),
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOutcome:
    """The outcome of an attempt to apply a decision."""

    status: Status
    version: int
    """The version of the commit, or the newest version that was read if there is no commit."""
    attempts: int = 0
    """Versions tried."""
    problem: str | None = None
    """The reason of a conflict, with its remedy."""
    notes: tuple[str, ...] = ()

    def as_result(self, result: Callable[..., R], plan: ChangePlan, **more: Any) -> R:
        """Builds the result of an operation; `more` are the fields that only this operation has."""
        return result(
            table=plan.table,
            version=self.version,
            status=self.status,
            attempts=self.attempts,
            added_features=plan.added_features if self.status == "committed" else (),
            problem=self.problem,
            notes=self.notes,
            **more,
        )


def cut_off_by(before: Protocol, after: Protocol) -> tuple[CutOff, ...]:
    """Returns the clients that lose access, or may lose it, when the protocol changes."""
    return tuple(
        CutOff(
            client=impact.client,
            reading=_FATES[impact.reading[0].value, impact.reading[1].value],
            writing=_FATES[impact.writing[0].value, impact.writing[1].value],
            features=impact.features,
        )
        for impact in impacts(before, after)
    )


_FATES: Mapping[tuple[str, str], Fate] = {
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
