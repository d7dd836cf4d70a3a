"""What ran: the newest rows of the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow.compute as pc

from delta_maintenance.ledger.trends import LedgerHistory
from delta_maintenance.policies.entries import BeforeAfter

SHOWN = 50
OUTCOMES = (
    *("done", "nothing-to-do", "planned", "incomplete", "failed", "stopped", "needs-approval"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One operation that ran."""

    at: datetime
    table: str
    owner: str | None
    operation: str | None
    """None if the table could not be read."""
    outcome: str
    error: str | None
    link: str | None
    done_by: str
    seconds: float | None
    files: BeforeAfter | None
    replay_bytes: BeforeAfter | None
    bytes_deleted: int
    bytes_freed: int
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatRan:
    """The newest operations that were asked for."""

    rows: tuple[Ran, ...]
    matching: int
    """Their number among the newest rows of the ledger that are kept."""
    operations: tuple[str, ...]
    """The operations among all of these rows."""


def what_ran(
    history: LedgerHistory, *, outcome: str = "", operation: str = "", most: int = SHOWN
) -> WhatRan:
    """The newest operations, all of them or those with an outcome and of a kind."""
    rows = history.newest
    operations = sorted(each for each in pc.unique(rows["operation"]).to_pylist() if each)
    for column, value in (("outcome", outcome), ("operation", operation)):
        if value:
            rows = rows.filter(pc.equal(rows[column], value))
    return WhatRan(
        rows=tuple(
            Ran(
                at=row["started_at"],
                table=row["table_name"] or row["table_uri"] or "",
                owner=row["owner"],
                operation=row["operation"],
                outcome=row["outcome"] or "",
                error=row["error"],
                link=row["link"],
                done_by=row["done_by"] or "",
                seconds=row["seconds"],
                files=_change(row["files_before"], row["files_after"]),
                replay_bytes=_change(row["replay_bytes_before"], row["replay_bytes_after"]),
                bytes_deleted=row["bytes_deleted"] or 0,
                bytes_freed=row["freed"],
                cost=row["cost"],
            )
            for row in rows.slice(0, most).to_pylist()
        ),
        matching=len(rows),
        operations=tuple(operations),
    )


def _change(before: int | None, after: int | None) -> BeforeAfter | None:
    return None if before is None or after is None else BeforeAfter(before=before, after=after)
