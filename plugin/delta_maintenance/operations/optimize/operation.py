"""The `optimize` operation: fewer and larger data files with the same rows.

Small files of a partition are merged; files with other reasons are rewritten in the same pass. Rows
keep their order, row IDs and commit versions. Before a commit, the new files are read back from
storage, and the digest of their rows is compared with that of the source rows. Other writers may
add, delete and update rows at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from delta_maintenance import clock
from delta_maintenance.clock import Clock, NewId, as_clock
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.optimize.options import (
    OptimizeOptions,
    OptimizePlan,
    OptimizeResult,
)
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.engine import BinEngine
from delta_maintenance.operations.rewriting.live_columns import CODEC, INT96
from delta_maintenance.operations.rewriting.planning import Survey
from delta_maintenance.operations.rewriting.verb import ApplySettings, RewriteVerb
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

__all__ = ["OptimizeOptions", "OptimizePlan", "OptimizeResult", "apply", "plan", "prepare"]

_SMALL = 0.75
"""Files smaller than this share of the target size are merged."""


def plan(
    snapshot: Snapshot,
    options: OptimizeOptions | None = None,
    *,
    now: datetime,
    new_id: NewId = clock.new_id,
    engine: BinEngine | None = None,
    progress: Progress | None = None,
) -> OptimizePlan:
    """Chooses the files to rewrite. Reads the log, and footers if an option requires them.

    Raises `UnsupportedFeatureError` or `RefusedError` for tables that this release must not
    rewrite, and `InvalidRequestError` for an invalid condition.
    """
    return _VERB.plan(snapshot, options or OptimizeOptions(), now=now)


def apply(
    table: Table,
    plan: OptimizePlan,
    *,
    now: datetime | Clock = clock.now,
    new_id: NewId = clock.new_id,
    engine: BinEngine | None = None,
    progress: Progress | None = None,
    surveyed: Survey | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> OptimizeResult:
    """Chooses files of the latest version by the options of the plan, rewrites and commits them.

    `surveyed` is the survey on which the plan is based, if the caller has it; it is not repeated.
    Errors before the first commit are raised, and so is a commit with an unknown outcome. The
    Result contains all other errors.
    """
    settings = ApplySettings(
        now=as_clock(now),
        new_id=new_id,
        engine=engine,
        progress=progress,
        surveyed=surveyed,
        sleep=sleep,
    )
    return _VERB.apply(table, plan, plan.options, settings)


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
    plan_type=OptimizePlan,
    result_type=OptimizeResult,
    operation="OPTIMIZE",
    parameters={"zOrderBy": [], "clusterBy": [], "auto": False},
    rules=_rules,
    footer_reasons=_footer_reasons,
    reason=_reason,
    target_bytes=lambda options: options.target_bytes,
)

prepare = _VERB.prepare
