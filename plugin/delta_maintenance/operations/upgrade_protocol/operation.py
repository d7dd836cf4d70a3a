"""The `upgrade-protocol` operation: let a table support more, and say who is cut off by that.

Changes the protocol and nothing else: a feature that is added is supported, not active. Tables of
the drafts of 2023 may be converted in the same commit: their high-water mark of row IDs moves into
the domain of today's row tracking, and maps that stand for a domain's text become that text. Row
IDs that files have stay; `backfill-row-ids` gives them to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from delta_maintenance import clock
from delta_maintenance.clock import Clock, NewId, as_clock
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.backfill_row_ids.batches import audit_row_ids
from delta_maintenance.operations.backfill_row_ids.commits import sources_of
from delta_maintenance.operations.table_change.models import Decision
from delta_maintenance.operations.table_change.operation import (
    carry_out,
    decide_change,
    done_before,
    require_changeable,
)
from delta_maintenance.operations.upgrade_protocol.options import (
    UpgradeProtocolOptions,
    UpgradeProtocolPlan,
    UpgradeProtocolResult,
)
from delta_maintenance.protocol.actions.model import DomainMetadata
from delta_maintenance.protocol.changes.enable import ChangeRequest, TableChange
from delta_maintenance.protocol.changes.row_tracking_support import support_change
from delta_maintenance.protocol.row_tracking import domain as row_tracking
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

__all__ = [
    "UpgradeProtocolOptions",
    "UpgradeProtocolPlan",
    "UpgradeProtocolResult",
    "apply",
    "plan",
]


def plan(
    snapshot: Snapshot,
    options: UpgradeProtocolOptions | None = None,
    *,
    now: datetime,
    new_id: NewId = clock.new_id,
    engine: Any = None,
    progress: Progress | None = None,
) -> UpgradeProtocolPlan:
    """What the latest snapshot's protocol becomes. Writes nothing.

    `InvalidRequestError` for a request that names nothing or versions that do not exist;
    `UnsupportedFeatureError` and `RefusedError` where this table cannot have what is asked for.
    """
    options = (options or UpgradeProtocolOptions()).validated()
    operation_id = options.operation_id or new_id()
    done = done_before(snapshot, operation_id=options.operation_id, since=options.operation_since)
    decision = (
        _decide(snapshot, options, operation_id) if done is None else Decision.nothing(snapshot)
    )
    return UpgradeProtocolPlan.of(
        snapshot,
        options,
        decision,
        operation_id=operation_id,
        now=now,
        reason=done or _reason(decision),
        converted_domains=tuple(domain.domain for domain in decision.domains),
    )


def apply(
    table: Table,
    plan: UpgradeProtocolPlan,
    *,
    now: datetime | Clock = clock.now,
    new_id: NewId = clock.new_id,
    engine: Any = None,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> UpgradeProtocolResult:
    """Commits what was planned, if the table would still be changed in that way.

    `RefusedError` where the table is another one, or must not be changed any more;
    `CommitUnknownError` where nobody can tell whether the commit was made.
    """
    ending = carry_out(
        table,
        plan,
        lambda snapshot: _decide(snapshot, plan.options, plan.operation_id),
        now=as_clock(now),
        new_id=new_id,
        sleep=sleep,
    )
    done = ending.status == "committed"
    return UpgradeProtocolResult.of(
        plan,
        ending,
        protocol=plan.protocol_after if done else None,
        converted_domains=plan.converted_domains if done else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversion:
    """What becomes of the drafts in a table; nothing where it has none."""

    base: TableChange
    """Protocol and metadata without them."""
    domains: tuple[DomainMetadata, ...] = ()
    drops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _decide(snapshot: Snapshot, options: UpgradeProtocolOptions, operation_id: str) -> Decision:
    asked = (options.features, options.reader_version, options.writer_version)
    if asked == ((), None, None) and not options.convert_draft:
        raise InvalidRequestError(
            "nothing is asked for", remedy="name features or versions that the table is to support"
        )
    before = TableChange(protocol=snapshot.protocol, metadata=snapshot.metadata)
    conversion = _conversion(snapshot) if options.convert_draft else _Conversion(base=before)
    features = list(options.features)
    if conversion.domains:
        features.append("domainMetadata")
    request = ChangeRequest(
        features=tuple(features),
        reader_version=options.reader_version,
        writer_version=options.writer_version,
    )
    after = decide_change(
        snapshot,
        request,
        operation_id=operation_id,
        protocol=conversion.base.protocol,
        metadata=conversion.base.metadata,
    )
    decision = Decision(
        operation="UPGRADE PROTOCOL",
        parameters={"newProtocol": _parameter(after)},
        before=before,
        after=after,
        domains=conversion.domains,
        drops=conversion.drops,
        notes=conversion.notes,
    )
    if not decision.is_noop:
        require_changeable(snapshot, decision, other_writers=options.other_writers)
    return decision


def _conversion(snapshot: Snapshot) -> _Conversion:
    try:
        sources = sources_of(snapshot)
        base = TableChange(protocol=snapshot.protocol, metadata=snapshot.metadata)
        maps = tuple(
            replace(domain, draft_map=False)
            for name, domain in sorted(snapshot.state.domains.items())
            if domain.draft_map and name != row_tracking.DOMAIN
        )
        notes = tuple(f"the domain {domain.domain!r} becomes text" for domain in maps)
        if sources.draft is None:
            return _Conversion(base=base, domains=maps, notes=notes)
        change = support_change(sources, convert_draft=True, lift_suspension=False)
        highest = audit_row_ids(snapshot).highest
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table, version=snapshot.version) from None
    if change is None:
        return _Conversion(base=base, domains=maps, notes=notes)
    mark = max(sources.high_water_mark, highest)
    domain = DomainMetadata(
        domain=row_tracking.DOMAIN, configuration=row_tracking.render_domain_configuration(mark)
    )
    return _Conversion(
        base=TableChange(
            protocol=change.protocol or base.protocol, metadata=change.metadata or base.metadata
        ),
        domains=(domain, *maps),
        drops=change.drops,
        notes=(
            f"{sources.draft}, from a draft, gives way to today's row tracking with the "
            f"high-water mark {mark}",
            "files without row IDs get them from backfill-row-ids",
            *notes,
        ),
    )


def _parameter(after: TableChange) -> dict[str, object]:
    text = after.protocol.to_json()
    names = ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures")
    return {name: text.get(name) for name in names}


def _reason(decision: Decision) -> str:
    if decision.is_noop:
        return "the table supports all of it already"
    if not decision.added_features:
        return "the features are listed, or named as they are today; none is added"
    return f"the table is to support {', '.join(decision.added_features)}"
