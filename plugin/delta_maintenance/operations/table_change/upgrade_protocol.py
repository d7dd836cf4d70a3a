"""The `upgrade-protocol` operation: adds table features, and lists the clients that lose access.

Changes only the protocol: an added feature is supported, but not active. Tables of the 2023 drafts
can be converted in the same commit: their high-water mark of row IDs moves into the row tracking
domain, and maps that represent the text of a domain become text. Files keep their row IDs;
`backfill-row-ids` assigns row IDs to the other files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from delta_maintenance.errors import InvalidRequestError, locating
from delta_maintenance.operations.backfill_row_ids.batches import audit_row_ids
from delta_maintenance.operations.backfill_row_ids.commits import sources_of
from delta_maintenance.operations.table_change.models import Decision
from delta_maintenance.operations.table_change.operation import (
    ChangeVerb,
    decide_change,
    require_changeable,
)
from delta_maintenance.operations.upgrade_protocol import (
    UpgradeProtocolOptions,
    UpgradeProtocolPlan,
    UpgradeProtocolResult,
)
from delta_maintenance.protocol.actions.model import DomainMetadata
from delta_maintenance.protocol.changes.enable import ChangeRequest, TableChange
from delta_maintenance.protocol.changes.row_tracking_support import support_change
from delta_maintenance.protocol.row_tracking import row_ids as row_tracking
from delta_maintenance.table.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversion:
    """The conversion of drafts in a table; empty if there are none."""

    base: TableChange
    """Protocol and metadata without the drafts."""
    domains: tuple[DomainMetadata, ...] = ()
    drops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _decide(snapshot: Snapshot, options: UpgradeProtocolOptions, operation_id: str) -> Decision:
    asked = (options.features, options.reader_version, options.writer_version)
    if asked == ((), None, None) and not options.convert_draft:
        raise InvalidRequestError(
            "the request is empty", remedy="give --feature, --reader-version or --writer-version"
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
        require_changeable(snapshot, decision, writers=options)
    return decision


def _conversion(snapshot: Snapshot) -> _Conversion:
    with locating(table=snapshot.table, version=snapshot.version):
        sources = sources_of(snapshot)
        base = TableChange(protocol=snapshot.protocol, metadata=snapshot.metadata)
        maps = tuple(
            replace(domain, draft_map=False)
            for name, domain in sorted(snapshot.log.state.domains.items())
            if domain.draft_map and name != row_tracking.DOMAIN
        )
        notes = tuple(f"the domain {domain.domain!r} becomes text" for domain in maps)
        if sources.draft is None:
            return _Conversion(base=base, domains=maps, notes=notes)
        change = support_change(sources, convert_draft=True, lift_suspension=False)
        mark = audit_row_ids(snapshot).mark_above(sources.high_water_mark)
    if change is None:
        return _Conversion(base=base, domains=maps, notes=notes)
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
            f"{sources.draft}, from a draft, is replaced by row tracking with the "
            f"high-water mark {mark}",
            "files without row IDs get them from backfill-row-ids",
            *notes,
        ),
    )


def _parameter(after: TableChange) -> dict[str, object]:
    text = after.protocol.to_json()
    names = ("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures")
    return {name: text.get(name) for name in names}


def _reason(_: Snapshot, decision: Decision) -> str:
    if decision.is_noop:
        return "the table already supports all of them"
    if not decision.added_features:
        return "features are listed explicitly or renamed to their final names; none is added"
    return f"add support for {', '.join(decision.added_features)}"


_VERB = ChangeVerb(
    options_type=UpgradeProtocolOptions,
    plan_type=UpgradeProtocolPlan,
    result_type=UpgradeProtocolResult,
    decide=_decide,
    reason=_reason,
    planned=lambda _, decision: {
        "converted_domains": tuple(domain.domain for domain in decision.domains)
    },
    done=lambda plan: {
        "protocol": plan.protocol_after,
        "converted_domains": plan.converted_domains,
    },
)
plan = _VERB.plan
apply = _VERB.apply
