"""The endpoint for metrics beside the health page: the last assessments in the OpenMetrics format.

Programs read it often and wait little, so they get a text that is kept and made anew in the
background.
"""

from __future__ import annotations

import gzip
import hmac
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view, resolve_user_from_token
from fastapi import Depends, FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.metrics.openmetrics import CONTENT_TYPE, render
from delta_maintenance.metrics.tables import TableFacts, families
from delta_maintenance_airflow.health_page.rows import STATUSES, TableRow

FRESH_SECONDS = 15.0
"""For this time, a text is served without a look at the assessments."""
OLDEST_SECONDS = 300.0
"""A text that is older is not served: the assessments could not be read meanwhile."""
PATIENCE_SECONDS = 8.0
"""How long a request waits for the first text. Prometheus waits for 10 seconds by default."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Text:
    """A text of metrics, also compressed, which takes longer than to send it."""

    plain: bytes
    compressed: bytes
    made_at: float


class KeptText:
    """The last text. Safe to share between threads.

    A request for a text that is not fresh gets it as it is, and a new one is made meanwhile. Only
    the first request waits, and those after a failure, which they report.
    """

    def __init__(
        self, make: Callable[[], bytes], *, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._text: Text | None = None
        self._running: Future[Text] | None = None

    def get(self) -> Text:
        """Returns a text of the last minutes. Raises the errors of `make`, and `TimeoutError`."""
        with self._lock:
            text = self._text
            age = None if text is None else self._elapsed() - text.made_at
            if text is not None and age is not None and age < FRESH_SECONDS:
                return text
            if self._running is None:
                self._running = Future()
                # A store that does not answer must not keep the process from ending.
                threading.Thread(target=self._run, args=[self._running], daemon=True).start()
            running = self._running
            if text is not None and age is not None and age < OLDEST_SECONDS:
                return text
        return running.result(PATIENCE_SECONDS)

    def _run(self, running: Future[Text]) -> None:
        made_at = self._elapsed()
        try:
            plain = self._make()
            text = Text(plain, gzip.compress(plain, compresslevel=5, mtime=0), made_at)
        except BaseException as error:
            with self._lock:
                self._text = self._running = None
            running.set_exception(error)
        else:
            with self._lock:
                self._text, self._running = text, None
            running.set_result(text)


def add_metrics(
    app: FastAPI,
    everything: Callable[[], Sequence[TableRow]],
    *,
    token: Callable[[], str | None],
    elapsed: Callable[[], float] = time.monotonic,
) -> None:
    """Adds the endpoint to the application of the page."""
    kept = KeptText(lambda: text_of(everything()), elapsed=elapsed)

    async def require_reader(request: Request) -> None:
        """Accepts the configured token, or else a user who may see the page."""
        given = _bearer(request)
        if given is not None and _is_token(given, token):
            return
        user = await resolve_user_from_token(given or request.cookies.get(COOKIE_NAME_JWT_TOKEN))
        requires_access_view(AccessView.PLUGINS)(request, user)

    def metrics(request: Request) -> Response:
        """The metrics of all tables of the policy."""
        try:
            text = kept.get()
        except TimeoutError:
            raise HTTPException(503, "The assessments are still being read.") from None
        headers = {"Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("Accept-Encoding", ""):
            return Response(text.plain, media_type=CONTENT_TYPE, headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(text.compressed, media_type=CONTENT_TYPE, headers=headers)

    app.add_api_route("/metrics", metrics, methods=["GET"], dependencies=[Depends(require_reader)])


def text_of(rows: Sequence[TableRow]) -> bytes:
    """Returns the metrics of the tables of the policy."""
    rows = [row for row in rows if row.in_policy]
    tables = [_facts(row) for row in rows if not row.is_pattern]
    unlisted = sum(row.is_pattern and row.status == "failed" for row in rows)
    return render(families(tables, statuses=STATUSES, unlisted=unlisted))


def _facts(row: TableRow) -> TableFacts:
    return TableFacts(
        name=row.name,
        status=row.status,
        assessed_at=row.assessment.assessed_at if row.assessment is not None else None,
        health=row.health,
        is_failing=row.status in ("failed", "unreadable"),
        waiting_plans=len(row.plans),
    )


def _bearer(request: Request) -> str | None:
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" and value.strip() else None


def _is_token(given: str, token: Callable[[], str | None]) -> bool:
    try:
        expected = token()
    except InvalidRequestError as error:
        _log.warning("%s", error)
        return False
    if expected is None:
        return False
    # Bytes of a header are decoded as Latin-1.
    return hmac.compare_digest(given.encode("latin-1"), expected.encode())
