"""Alerts: the new failures of a run, once, to the owners of the tables.

A failure is told until a webhook has accepted it, and not again while it stays the same. The state
keeps what was told, in one small file per owner with a webhook. A process that is killed between
the two tells the same once more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.record import Record
from delta_maintenance.policies.acknowledgements import Failure
from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore
from delta_maintenance.policies.definition.alerts import AlertRules, Webhook

Post = Callable[[Webhook, str], bool]
"""Posts a message. Returns false if this process cannot use the webhook; raises the errors of
`webhook.post`.
"""
RUN = "run"
"""The step of a failure of the run itself, which is about no table."""
_SHOWN = 10
_MOST_PROBLEM = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Record):
    """The failures that one owner was told of."""

    form: Literal[1] = 1
    """The version of this format."""
    failures: dict[str, Failure] = field(default_factory=dict)
    """By the name of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The current state of a table, or of a part of the run."""

    failure: Failure | None
    """None if it is well."""
    problem: str = ""
    owner: str | None = None
    acknowledged: bool = False

    @classmethod
    def of(cls, entry: AssessmentEntry, *, now: datetime) -> Known:
        """The state in an entry."""
        run = entry.run.problem if entry.run is not None else None
        return cls(
            failure=entry.failure,
            problem=entry.assessment.problem or run or "",
            owner=entry.assessment.owner,
            acknowledged=entry.acknowledged(now=now) is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one owner is to be told, and what the owner was told afterwards."""

    new: Mapping[str, str]
    """The problems by the names of the tables."""
    recovered: tuple[str, ...]
    told: Told

    def text(self, title: str) -> str:
        """The message."""
        lines = []
        if self.new:
            lines.append(f"{title}: {count_text(len(self.new), 'new failure')}")
            shown = [*self.new.items()][:_SHOWN]
            lines += [f"• {name}: {problem[:_MOST_PROBLEM]}" for name, problem in shown]
            if len(self.new) > len(shown):
                lines.append(f"and {len(self.new) - len(shown):,} more")
        if self.recovered:
            names = ", ".join(self.recovered[:_SHOWN])
            more = ", …" if len(self.recovered) > _SHOWN else ""
            lines.append(f"{'' if self.new else f'{title}: '}well again: {names}{more}")
        return "\n".join(lines)


def news(told: Told, now: Mapping[str, Known]) -> News:
    """Compares what an owner was told with the current state of the owner's tables.

    Acknowledged failures are not told, and are new once the acknowledgement has ended. A name
    without a state stays as it was told.
    """
    new, recovered, kept = {}, [], dict(told.failures)
    for name, known in now.items():
        before = told.failures.get(name)
        if known.failure is None:
            kept.pop(name, None)
            if before is not None:
                recovered.append(name)
        elif known.acknowledged:
            kept.pop(name, None)
        else:
            kept[name] = known.failure
            if before is None or not before.is_same(known.failure):
                new[name] = known.problem
    return News(new=new, recovered=tuple(recovered), told=Told(failures=kept))


def tell(
    rules: AlertRules,
    state: AssessmentStore,
    failed: Iterable[str],
    post: Post,
    *,
    title: str,
    now: datetime,
    of_run: Mapping[str, str] | None = None,
) -> tuple[DeltaMaintenanceError, ...]:
    """Tells each owner what is new after a run, and remembers what was told.

    `failed` are the names of the tables and patterns whose failures are stored. `of_run` are
    problems of the run itself, by the names of its parts, which the default webhook gets; without
    it the run knows none of them, and those that were told stay. Returns the errors of messages
    that were not delivered: the next run tells the same.
    """
    owners: Sequence[str | None] = [*rules.owners, *([None] if rules.default is not None else [])]
    told = {owner: _told(state, owner) for owner in owners}
    before = {name for each in told.values() for name in each.failures}
    tables = _states(state, dict.fromkeys([*failed, *before]), now=now)
    if of_run is not None:
        parts = {name for name, each in _all(told).items() if each.step == RUN} | of_run.keys()
        tables |= {name: _part(of_run.get(name)) for name in parts}
    errors = []
    for owner in owners:
        webhook = rules.owners[owner] if owner is not None else rules.default
        assert webhook is not None
        own = {
            name: known
            for name, known in tables.items()
            if _addressee(rules, known) == owner or name in told[owner].failures
        }
        found = news(told[owner], own)
        try:
            if (found.new or found.recovered) and not post(webhook, found.text(title)):
                continue
            if found.told != told[owner]:
                state.store.put(_file_name(owner), json.dumps(found.told.to_json()).encode())
        except DeltaMaintenanceError as error:
            errors.append(error)
    return tuple(errors)


def _addressee(rules: AlertRules, known: Known) -> str | None:
    return known.owner if known.owner in rules.owners else None


def _all(told: Mapping[str | None, Told]) -> dict[str, Failure]:
    return {name: each for one in told.values() for name, each in one.failures.items()}


def _part(problem: str | None) -> Known:
    failure = Failure.of(RUN, problem) if problem is not None else None
    return Known(failure=failure, problem=problem or "")


def _states(state: AssessmentStore, names: Iterable[str], *, now: datetime) -> dict[str, Known]:
    wanted = frozenset(names)
    return {
        entry.name: Known.of(entry, now=now)
        for entry in (state.load_all() if wanted else ())
        if isinstance(entry, AssessmentEntry) and entry.name in wanted
    }


def _told(state: AssessmentStore, owner: str | None) -> Told:
    try:
        return Told.from_json(json.loads(state.store.read(_file_name(owner))))
    except (FileNotFoundError, ValueError, RecursionError, InvalidRequestError):
        # Unreadable state makes a message come twice, and none is lost.
        return Told()


def _file_name(owner: str | None) -> str:
    digest = hashlib.sha256(repr(owner).encode("utf-8", "surrogatepass")).hexdigest()
    return f"alerts-{digest[:32]}.told"
