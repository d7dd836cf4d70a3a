"""The ledger of the policy, read in the background for the pages that show it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from delta_maintenance.errors import NotADeltaTableError, failure_of
from delta_maintenance.ledger.table import LedgerTable
from delta_maintenance.ledger.trends import LedgerHistory, Trends, first_day, read_history, trends
from delta_maintenance.policies.definition.ledger import LedgerRule
from delta_maintenance.policies.definition.prices import Prices
from delta_maintenance_airflow.health_page.drawing import Chart
from delta_maintenance_airflow.health_page.fleet.trend_charts import trend_charts
from delta_maintenance_airflow.health_page.known_tables import PolicyFile

CHECK_SECONDS = 5.0
"""For this time, the version of the ledger is not looked at again."""
REST = 10
"""After it was read, the ledger rests this many times as long."""
PATIENCE_SECONDS = 0.1
"""How long the first visit waits for the ledger. The page is then shown without it."""

_Key = tuple[LedgerRule, Prices | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
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
        self._last: Look | None = None
        self._running: threading.Event | None = None
        self._rest_until = 0.0

    def look(self) -> Look:
        """Returns what is known, and begins another look. Raises nothing for the ledger."""
        policy = self._policy.tables().policy
        if policy is None or policy.ledger is None:
            return Look(has_ledger=False)
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
            last, running = self._last, self._running
        if last is None and running is not None:
            running.wait(PATIENCE_SECONDS)
            last = self._last
        return last or Look(is_reading=True)

    def _run(self, key: _Key, running: threading.Event) -> None:
        began, known = self._elapsed(), self._last
        ledger, found = self._ledger, known or Look()
        try:
            ledger = ledger or self._open(key[0])
            found = self._found(ledger, key[1], found)
        except NotADeltaTableError:
            found = Look()
        except Exception as error:
            # Opened again the next time, because credentials expire.
            ledger, problem = None, str(failure_of(error, where="the ledger"))
            found = replace(found, problem=problem)
        ended = self._elapsed()
        with self._lock:
            if self._running is running:
                self._last, self._ledger, self._running = found, ledger, None
                self._rest_until = ended + max(CHECK_SECONDS, REST * (ended - began))
        running.set()

    def _found(self, ledger: LedgerTable, prices: Prices | None, known: Look) -> Look:
        now, history = self._now(), known.history
        if (
            history is not None
            and history.first_day == first_day(now)
            and history.version == ledger.version()
        ):
            return replace(known, checked_at=now, problem=None)
        history = read_history(ledger, now=now, prices=prices)
        currency = prices.currency if prices is not None else None
        added = trends(history)
        return Look(
            history=history,
            trends=added,
            charts=trend_charts(added, history.first_day, currency=currency),
            checked_at=now,
            currency=currency,
        )
