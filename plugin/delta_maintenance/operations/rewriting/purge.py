"""The `purge` operation: removes deleted rows and values of dropped columns from data files.

Each file with deleted rows or values of dropped columns is rewritten without them. Files are not
merged. Older versions of the table keep the old files until a vacuum deletes them. Rows keep their
order, row IDs and commit versions, and are proved equal before a commit, as in `optimize`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.holds.find import kept_rows
from delta_maintenance.operations.purge import PurgeOptions, PurgePlan, PurgeResult
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.live_columns import DROPPED_COLUMNS
from delta_maintenance.operations.rewriting.verb import RewriteVerb
from delta_maintenance.table.read.snapshot import Snapshot


def _rules(options: PurgeOptions, target_bytes: int) -> ChoiceRules:
    return ChoiceRules(
        target_bytes=target_bytes,
        small_bytes=0,
        merge_small=False,
        deleted_share=options.above_percent / 100,
        full=True,
    )


def _footer_reasons(options: PurgeOptions) -> Sequence[str]:
    return [DROPPED_COLUMNS] if options.dropped_columns else []


def _reason(fields: Mapping[str, Any]) -> str:
    if fields["is_noop"]:
        return "no live file has deleted rows or dropped columns"
    files = count_text(fields["files"], "file")
    rows = count_text(fields["deleted_rows"], "deleted row")
    return f"{files} with {size_text(fields['bytes'])} and {rows} are rewritten"


def _held(snapshot: Snapshot, options: PurgeOptions, context: RunContext) -> tuple[str, ...]:
    return kept_rows(snapshot, options.holders, context, rows="deleted rows")


_VERB = RewriteVerb(
    options_type=PurgeOptions,
    plan_type=PurgePlan,
    result_type=PurgeResult,
    operation="REORG",
    parameters={"applyPurge": True},
    rules=_rules,
    footer_reasons=_footer_reasons,
    reason=_reason,
    held=_held,
)

plan = _VERB.plan
apply = _VERB.apply
prepare = _VERB.prepare
