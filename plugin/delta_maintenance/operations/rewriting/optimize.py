"""The `optimize` operation: fewer and larger data files with the same rows.

Small files of a partition are merged; files with other reasons are rewritten in the same pass. Rows
keep their order, row IDs and commit versions. Before a commit, the new files are read back from
storage, and the digest of their rows is compared with that of the source rows. Other writers may
add, delete and update rows at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.optimize import OptimizeOptions, OptimizePlan, OptimizeResult
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.live_columns import CODEC, INT96
from delta_maintenance.operations.rewriting.verb import RewriteVerb

_SMALL = 0.75
"""Files smaller than this share of the target size are merged."""


def _rules(options: OptimizeOptions, target_bytes: int) -> ChoiceRules:
    return ChoiceRules(
        target_bytes=target_bytes,
        small_bytes=int(target_bytes * _SMALL),
        deleted_share=options.deleted_percent / 100,
        min_files=options.min_files,
        full=options.full,
    )


def _footer_reasons(options: OptimizeOptions) -> Sequence[str]:
    return [name for name, on in ((INT96, options.int96), (CODEC, options.other_codecs)) if on]


def _reason(fields: Mapping[str, Any]) -> str:
    if fields["is_noop"]:
        return "no file is worth rewriting"
    files = count_text(fields["files"], "file")
    after = f"{fields['files_after']:,} with {size_text(fields['bytes_after'])}"
    return f"{files} with {size_text(fields['bytes'])} become about {after}"


_VERB = RewriteVerb(
    options_type=OptimizeOptions,
    plan_type=OptimizePlan,
    result_type=OptimizeResult,
    operation="OPTIMIZE",
    parameters={"zOrderBy": [], "clusterBy": [], "auto": False},
    rules=_rules,
    footer_reasons=_footer_reasons,
    reason=_reason,
)

plan = _VERB.plan
apply = _VERB.apply
prepare = _VERB.prepare
