"""The endpoint for metrics beside the health page: the last assessments as OpenMetrics."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Sequence

from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view, resolve_user_from_token
from fastapi import Depends, FastAPI, Request
from fastapi.responses import Response
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.metrics.tables import CONTENT_TYPE, TableFacts, families, render
from delta_maintenance_airflow.health_page.kept_text import KeptText
from delta_maintenance_airflow.health_page.rows import STATUSES, TableRow

_log = logging.getLogger(__name__)


def add_metrics(
    app: FastAPI, everything: Callable[[], Sequence[TableRow]], *, token: Callable[[], str | None]
) -> None:
    """Adds the endpoint to the application of the page."""
    kept_text = KeptText(lambda: text_of(everything()))

    async def require_reader(request: Request) -> None:
        """Accepts the configured token, or else a user who may see the page."""
        bearer = _bearer(request)
        if bearer is not None and _is_token(bearer, token):
            return
        user = await resolve_user_from_token(bearer or request.cookies.get(COOKIE_NAME_JWT_TOKEN))
        requires_access_view(AccessView.PLUGINS)(request, user)

    def metrics(request: Request) -> Response:
        """The metrics of all tables of the policy."""
        try:
            text = kept_text.get()
        except TimeoutError:
            raise HTTPException(503, "The assessments are still being read.") from None
        headers, body = {"Vary": "Accept-Encoding"}, text.plain
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"], body = "gzip", text.compressed
        return Response(
            body,
            media_type=CONTENT_TYPE,
            headers=headers,
            # After the answer, which would take longer beside it.
            background=BackgroundTask(kept_text.renew),
        )

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


def _is_token(bearer: str, token: Callable[[], str | None]) -> bool:
    try:
        expected = token()
    except InvalidRequestError as error:
        _log.warning("%s", error)
        return False
    if expected is None:
        return False
    # Bytes of a header are decoded as Latin-1.
    return hmac.compare_digest(bearer.encode("latin-1"), expected.encode())
