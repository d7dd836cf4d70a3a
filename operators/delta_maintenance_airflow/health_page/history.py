"""The last 90 days: the ledger of the policy, read in the background for the pages that show it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow.compute as pc

from delta_maintenance.address import identity_of
from delta_maintenance.errors import NotADeltaTableError, failure_of
from delta_maintenance.ledger.table import LedgerTable
from delta_maintenance.ledger.trends import LedgerHistory, Trends, first_day, read_history, trends
from delta_maintenance.policies.definition.ledger import LedgerRule, Prices
from delta_maintenance.policies.entries import BeforeAfter
from delta_maintenance_airflow.health_page.charts import trend_charts
from delta_maintenance_airflow.health_page.drawing import Chart
from delta_maintenance_airflow.health_page.known_tables import PolicyFile
from delta_maintenance_airflow.health_page.rows import TableRow

CHECK_SECONDS = 5.0
"""For this time, the version of the ledger is not looked at again."""
REST = 10
"""After it was read, the ledger rests this many times as long."""
PATIENCE_SECONDS = 0.1
"""How long the first visit waits for the ledger. The page is then shown without it."""
MOST_OPERATIONS = 50
"""The most operations in the list of what ran."""
_MOST_OF_TABLE = 20
OUTCOMES = (
    *("done", "nothing-to-do", "planned", "incomplete", "failed", "stopped", "needs-approval"),
)

_Key = tuple[LedgerRule, Prices | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLook:
    """What is known of the ledger now."""

    has_ledger: bool = True
    """Whether the policy names one."""
    is_reading: bool = False
    """Whether it is being read for the first time."""
    history: LedgerHistory | None = None
    trends: Trends | None = None
    """Of all tables."""
    charts: tuple[Chart, ...] | None = ()
    """Their charts; None without Pygal."""
    checked_at: datetime | None = None
    """When the history was complete."""
    currency: str | None = None
    """Of the costs; None without a price list."""
    problem: str | None = None
    """Why it cannot be read now, in one line; the history is then an earlier one, if any."""

    def restricted_to(self, rows: Iterable[TableRow]) -> LedgerLook:
        """What concerns some tables."""
        if self.history is None:
            return self
        history = self.history.of({identity_of(row.uri) for row in rows if row.uri})
        return self.with_history(history)

    def with_history(self, history: LedgerHistory) -> LedgerLook:
        """The look with a history, its trends and their charts."""
        sums = trends(history)
        charts = trend_charts(sums, history.first_day, currency=self.currency)
        return replace(self, history=history, trends=sums, charts=charts)


class KeptHistory:
    """The history of the ledger as of the last look. Safe to share between threads.

    A visit shows what is known and begins the next look, which reads the ledger only if it has
    another version. The history stays in memory once for each process.
    """

    def __init__(
        self,
        policy: PolicyFile,
        open_ledger: Callable[[LedgerRule], LedgerTable],
        *,
        now: Callable[[], datetime],
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._open = open_ledger
        self._now = now
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._key: _Key | None = None
        self._ledger: LedgerTable | None = None
        self._last: LedgerLook | None = None
        self._running: threading.Event | None = None
        self._rest_until = 0.0

    def look(self) -> LedgerLook:
        """Returns what is known, and begins another look. Raises nothing for the ledger."""
        policy = self._policy.tables().policy
        if policy is None or policy.ledger is None:
            return LedgerLook(has_ledger=False)
        key = (policy.ledger, policy.prices)
        with self._lock:
            if key != self._key:
                # A thread that still reads another ledger finds that nobody waits for it.
                self._key, self._last, self._ledger, self._running = key, None, None, None
                self._rest_until = self._elapsed()
            if self._running is None and self._elapsed() >= self._rest_until:
                self._running = threading.Event()
                # A store that does not answer must not keep the process from ending.
                threading.Thread(target=self._run, args=(key, self._running), daemon=True).start()
            last_look, running = self._last, self._running
        if last_look is None and running is not None:
            running.wait(PATIENCE_SECONDS)
            last_look = self._last
        return last_look or LedgerLook(is_reading=True)

    def _run(self, key: _Key, running: threading.Event) -> None:
        began, ledger = self._elapsed(), self._ledger
        look = self._last or LedgerLook()
        try:
            ledger = ledger or self._open(key[0])
            look = self._read(ledger, key[1], look)
        except NotADeltaTableError:
            look = LedgerLook()
        except Exception as error:
            # Opened again the next time, because credentials expire.
            ledger, problem = None, str(failure_of(error, where="the ledger"))
            look = replace(look, problem=problem)
        ended = self._elapsed()
        with self._lock:
            if self._running is running:
                self._last, self._ledger, self._running = look, ledger, None
                self._rest_until = ended + max(CHECK_SECONDS, REST * (ended - began))
        running.set()

    def _read(self, ledger: LedgerTable, prices: Prices | None, look: LedgerLook) -> LedgerLook:
        now, history = self._now(), look.history
        if (
            history is not None
            and history.first_day == first_day(now)
            and history.version == ledger.version()
        ):
            return replace(look, checked_at=now, problem=None)
        history = read_history(ledger, now=now, prices=prices)
        currency = prices.currency if prices is not None else None
        return LedgerLook(checked_at=now, currency=currency).with_history(history)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanOperation:
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
    approved_by: str | None
    seconds: float | None
    files: BeforeAfter | None
    replay_bytes: BeforeAfter | None
    bytes_deleted: int
    bytes_freed: int
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatRan:
    """The newest operations that were asked for."""

    rows: tuple[RanOperation, ...]
    matching: int
    """Their number among the newest rows of the ledger that are kept."""
    operations: tuple[str, ...]
    """The operations among all of these rows."""


def what_ran(
    history: LedgerHistory, *, outcome: str = "", operation: str = "", most: int = MOST_OPERATIONS
) -> WhatRan:
    """The newest operations, all of them or those with an outcome and of a kind."""
    rows = history.newest
    operations = sorted(name for name in pc.unique(rows["operation"]).to_pylist() if name)
    for column, value in (("outcome", outcome), ("operation", operation)):
        if value:
            rows = rows.filter(pc.equal(rows[column], value))
    return WhatRan(
        rows=tuple(
            RanOperation(
                at=row["started_at"],
                table=row["table_name"] or row["table_uri"] or "",
                owner=row["owner"],
                operation=row["operation"],
                outcome=row["outcome"] or "",
                error=row["error"],
                link=row["link"],
                done_by=row["done_by"] or "",
                approved_by=row["approved_by"],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHistory:
    """The last 90 days of a table."""

    operations: int
    ran: WhatRan
    charts: tuple[Chart, ...]


def history_of(row: TableRow, look: LedgerLook) -> TableHistory | None:
    """The last 90 days of a table; None without a ledger, or without an address."""
    look = look.restricted_to([row])
    if look.history is None or row.uri is None:
        return None
    ran = what_ran(look.history, most=_MOST_OF_TABLE)
    return TableHistory(operations=look.history.rows, ran=ran, charts=look.charts or ())
