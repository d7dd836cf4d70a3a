"""The form of the health page that acknowledges the failure of a table.

The only request of the page that changes something. It needs the permission to trigger the
scheduled Dag, and is refused if it comes from another site: the session of Airflow is a cookie.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_dag,
    requires_access_view,
)
from fastapi import Depends, FastAPI, Form, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.policies.acknowledgements import Acknowledgement, acknowledge_failure
from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore

SCHEDULED_DAG = "delta_maintenance"
ENDS = {"7d": "for 7 days", "30d": "for 30 days", "": "until it changes"}
"""The ends that the form offers, as durations; an empty one is that of the failure itself."""
Ask = Callable[[Callable[[AssessmentStore], Any]], Any]
"""Asks the store a question, and reports its failure as a page."""


def add_acknowledgement(app: FastAPI, ask: Ask, *, now: Callable[[], datetime]) -> None:
    """Adds the target of the form to the application of the page."""

    def acknowledge(
        request: Request,
        user: GetUserDep,
        name: Annotated[str, Form()],
        reason: Annotated[str, Form()] = "",
        until: Annotated[str, Form()] = "",
        remove: Annotated[bool, Form()] = False,
    ) -> Response:
        """Stores or removes an acknowledgement, and shows the table again."""

        def make(entry: AssessmentEntry) -> Acknowledgement | None:
            if remove:
                return None
            return acknowledge_failure(
                entry.failure,
                name=name,
                reason=reason,
                by=user.get_name(),
                until=until or None,
                until_changed=not until,
                now=now(),
            )

        def store(assessments: AssessmentStore) -> None:
            try:
                assessments.acknowledge(name, make)
            except InvalidRequestError as error:
                raise HTTPException(400, str(error)) from error

        ask(store)
        page = f"{request.scope.get('root_path', '')}/table?{urlencode({'name': name})}"
        return RedirectResponse(page, status_code=303)

    app.add_api_route(
        "/acknowledge",
        acknowledge,
        methods=["POST"],
        dependencies=[
            Depends(require_same_site),
            Depends(requires_access_view(AccessView.PLUGINS)),
            Depends(requires_access_dag("POST", DagAccessEntity.RUN, SCHEDULED_DAG)),
        ],
    )


def require_same_site(request: Request) -> None:
    """Refuses a request that a browser sends on behalf of another site.

    Browsers say where a request comes from: `Sec-Fetch-Site` over HTTPS, and `Origin` always with a
    form. A client that says neither must not rely on a cookie.
    """
    headers = request.headers
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None:
        permitted = site == "same-origin"
    elif origin is not None:
        permitted = urlsplit(origin).netloc == headers.get("Host")
    else:
        permitted = "Authorization" in headers
    if not permitted:
        raise HTTPException(403, "This request comes from another site.")
