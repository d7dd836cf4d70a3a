"""The health page within Airflow's own application, and the elements of its pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx

from delta_maintenance.policies import AssessmentStore
from delta_maintenance_airflow.health_page.approvals import Question
from delta_maintenance_airflow.health_page.known_tables import PolicyFile
from delta_maintenance_airflow.plugin import URL_PREFIX, HealthPage
from tests.support.tables.assessed_tables import NOW

POLICY = """\
version: 1
tables:
  - {name: orders, uri: s3://lake/sales/orders, owner: sales, tags: [gold]}
  - {name: never, uri: s3://lake/sales/never}
  - {name: lake, pattern: "s3://lake/bronze/**", owner: platform}
"""


class Site:
    """Airflow's application with our page, for requests of several users."""

    def __init__(
        self,
        store: AssessmentStore,
        policy: Path,
        *,
        separate_approver: bool = False,
        metrics_token: Callable[[], str | None] | None = None,
    ) -> None:
        from delta_maintenance_airflow.health_page.app import create_app

        self.store, self.policy = store, policy
        self.closed: set[Question] = set()
        """The questions that Airflow no longer asks."""
        self.page = HealthPage()
        self.app = airflow_with(self.page)
        self.page._app = create_app(
            lambda: self.store,
            PolicyFile(str(self.policy)),
            now=lambda: NOW,
            open_questions=lambda questions: questions - self.closed,
            separate_approver=separate_approver,
            metrics_token=metrics_token,
        )

    def get(
        self,
        path: str,
        *,
        role: str | None = "viewer",
        cookie: str | None = None,
        method: str = "GET",
        form: Mapping[str, str] | None = None,
        more: Mapping[str, str | bytes] | None = None,
        json: Any = None,
    ) -> httpx.Response:
        """The response for a user of this role; without a role, for a user who is not signed in.

        `form` is sent as browsers do, with `more` as headers.
        """
        named: dict[str, str | bytes] = {}
        if role is not None:
            named["Authorization"] = f"Bearer {token(role)}"
        if cookie is not None:
            named["Cookie"] = f"_token={cookie}"
        named |= more or {}
        # As bytes, because a client may send any.
        headers = [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in named.items()
        ]

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                address = f"{URL_PREFIX}{path}"
                return await client.request(method, address, headers=headers, data=form, json=json)

        return asyncio.run(ask())


def airflow_with(page: HealthPage) -> Any:
    """Returns Airflow's application, reduced to its mounts and its authentication."""
    from airflow.api_fastapi.app import init_auth_manager
    from fastapi import FastAPI

    app = FastAPI()
    init_auth_manager(app)
    app.mount(URL_PREFIX, page)
    return app


def token(role: str) -> str:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = SimpleAuthManagerUser(username="somebody", role=role if role != "none" else None)
    signed: str = get_auth_manager().generate_jwt(user)
    return signed


class Elements(HTMLParser):
    """The elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    @classmethod
    def of(cls, page: str) -> Elements:
        parser = cls()
        parser.feed(page)
        parser.close()
        return parser

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.started.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def words(page: str) -> str:
    """The text of a page, with single blanks."""
    return " ".join(Elements.of(page).text.split())
