"""Base class of Plans and Results: people see the facts that the operation's record states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import AnyOperation, operations
from delta_maintenance.operations.core.rendering import Shown


@dataclass(frozen=True, slots=True)
class Document(Shown, Record):
    """A Plan or a Result."""

    def heading(self) -> str:
        record = _record_of(self)
        return f"{record.name}, dry run" if record.plan is type(self) else record.name

    def facts(self) -> Facts:
        record = _record_of(self)
        return (record.plan_facts if record.plan is type(self) else record.result_facts)(self)


def _record_of(document: Any) -> AnyOperation:
    kind = type(document)
    return next(each for each in operations() if kind in (each.plan, each.result))
