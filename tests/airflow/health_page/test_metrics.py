"""The endpoint for metrics: who may read it, what it says, and what a scrape costs."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.middleware.gzip import GZipMiddleware

from delta_maintenance.errors import StorageAccessError
from delta_maintenance.policies import AssessmentStore
from delta_maintenance_airflow import settings
from delta_maintenance_airflow.health_page import kept_text
from delta_maintenance_airflow.plugin import URL_PREFIX
from tests.support.orchestrators.airflow_versions import since_3_2
from tests.support.orchestrators.health_site import POLICY, Site
from tests.support.tables.assessed_tables import assessment, deferred, fill, waiting

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
TOKEN = "päßwort-of-a-scraper"
SCRAPER = {"Authorization": f"Bearer {TOKEN}".encode()}


@pytest.fixture
def scraped(airflow_db: None, tmp_path: Path) -> Iterator[Site]:
    """The page with metrics and a token for them."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    store = AssessmentStore(str(tmp_path / "assessments"))
    yield Site(store, policy, metrics_token=lambda: TOKEN)
    store.close()


def values(text: str) -> dict[str, dict[str, float]]:
    return {
        family.name: {",".join(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


def scrape(site: Site) -> Any:
    return site.get("/metrics", role=None, more=SCRAPER)


def test_metrics_are_off_by_default(site: Site) -> None:
    assert site.get("/metrics").status_code == 404
    assert not settings.has_metrics()


def test_a_scraper_with_the_token_reads_them(scraped: Site) -> None:
    scraped.store.save(assessment())
    response = scrape(scraped)
    assert response.status_code == 200
    assert response.headers["Content-Type"] == (
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert response.headers["Cache-Control"] == "no-store"
    found = values(response.text)
    assert set(found["delta_maintenance_table_failing"]) == {"orders", "never"}


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        (f"Basic {TOKEN}".encode(), 401),
        (f"Bearer {TOKEN[:-1]}".encode(), 403),
        (f"Bearer {TOKEN}x".encode(), 403),
        ("Bearer e30.e30.e30", 403),
        ("Bearer None", 403),
    ],
)
def test_nobody_else_does(scraped: Site, given: Any, status: int) -> None:
    scraped.store.save(assessment())
    more = {} if given is None else {"Authorization": given}
    response = scraped.get("/metrics", role=None, more=more)
    assert response.status_code == status
    assert "delta_maintenance_" not in response.text and "orders" not in response.text
    assert TOKEN not in response.text


def test_users_who_may_see_the_page_read_them(scraped: Site) -> None:
    assert scraped.get("/metrics").status_code == 200
    assert scraped.get("/metrics", role="none").status_code == 403


def test_without_a_token_users_still_read_them(site: Site) -> None:
    only_users = Site(site.store, site.policy, metrics_token=lambda: None)
    assert only_users.get("/metrics").status_code == 200
    for given in ("", "None", TOKEN):
        more = {"Authorization": f"Bearer {given}".encode()}
        response = only_users.get("/metrics", role=None, more=more)
        assert response.status_code in (401, 403)


def test_the_token_opens_no_other_page(scraped: Site) -> None:
    for path in ("/", "/table?name=orders", "/approvals"):
        response = scraped.get(path, role=None, more=SCRAPER)
        assert response.status_code == 403
    assert scraped.get("/metrics", method="POST").status_code == 405


def test_the_numbers_are_those_of_the_page(scraped: Site) -> None:
    fill(scraped.store, 20)
    scraped.store.save(*waiting("orders"))
    # Not in the policy.
    scraped.store.save(assessment("s3://elsewhere/x", uri="s3://elsewhere/x", status="failed"))
    scraped.store.save(replace(assessment("s3://lake/x/**"), subject="pattern", status="failed"))
    scraped.store.save(deferred("lately", "checkpoint", "optimize"))
    (Path(scraped.store.uri) / f"{'0' * 64}.json").write_text("{")
    scraped.policy.write_text(
        "version: 1\ntables: [{pattern: 's3://lake/**'}, {uri: s3://lake/new}]"
    )
    found = values(scrape(scraped).text)
    statuses = found["delta_maintenance_tables"]
    assert statuses["needs-approval"] == statuses["never-assessed"] == statuses["unreadable"] == 1
    assert statuses["failed"] == 2 and sum(statuses.values()) == 24
    assert statuses["deferred"] == 1
    assert found["delta_maintenance_failing_tables"] == {"": 3}
    assert found["delta_maintenance_table_waiting_plans"]["orders"] == 1
    assert found["delta_maintenance_waiting_plans"] == {"": 1}


def test_a_token_in_a_file_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Site, caplog: Any
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__METRICS_TOKEN_FILE", str(file))
    assert settings.has_metrics()
    page = Site(site.store, site.policy, metrics_token=settings.metrics_token)

    def status(token: str) -> int:
        more = {"Authorization": f"Bearer {token}"}
        return page.get("/metrics", role=None, more=more).status_code

    assert (status("first"), status("second")) == (200, 403)
    file.write_text("second")
    assert (status("first"), status("second")) == (403, 200)
    for empty in ("", " \n"):
        file.write_text(empty)
        assert (status(""), status("second")) == (401, 403)
    file.unlink()
    assert (status("second"), page.get("/metrics").status_code) == (403, 200)
    assert f"file {file}: the token for metrics cannot be read" in caplog.text


@since_3_2
def test_airflow_knows_that_the_token_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.configuration import conf

    assert ("delta_maintenance", "metrics_token") in conf.sensitive_config_values
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__METRICS_TOKEN_CMD", "echo from-a-command")
    assert settings.metrics_token() == "from-a-command" and settings.has_metrics()


def test_a_folder_that_cannot_be_read_is_reported(
    scraped: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: AssessmentStore) -> None:
        raise StorageAccessError("access denied")

    with monkeypatch.context() as patched:
        patched.setattr(AssessmentStore, "load_all", fails)
        response = scrape(scraped)
        assert response.status_code == 503 and "access denied" in response.text
    assert scrape(scraped).status_code == 200


def test_the_text_is_compressed_once(scraped: Site) -> None:
    """Airflow would otherwise compress it for every scrape."""
    fill(scraped.store, 30)
    scraped.app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=9)
    compressed = asked(scraped.app, URL_PREFIX, [(b"accept-encoding", b"gzip")])
    plain = asked(scraped.app, URL_PREFIX, [])
    assert gzip.decompress(compressed) == plain
    assert compressed == gzip.compress(plain, compresslevel=5, mtime=0)


def test_many_scrapes_read_the_assessments_once(
    scraped: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`benchmarks.scale.history_page` measures a scrape."""
    fill(scraped.store, 2_000)
    scraped.policy.unlink()
    monkeypatch.setattr(kept_text, "FRESH_SECONDS", 3600.0)
    reads: list[AssessmentStore] = []
    load = AssessmentStore.load_all

    def counted(store: AssessmentStore) -> Any:
        reads.append(store)
        return load(store)

    monkeypatch.setattr(AssessmentStore, "load_all", counted)
    texts = {asked(scraped.page._app, "", [(b"accept-encoding", b"gzip")]) for _ in range(20)}
    [text] = texts
    found = values(gzip.decompress(text).decode())
    assert len(found["delta_maintenance_table_failing"]) == 2_000
    assert len(reads) == 1


def asked(app: Any, root: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The body of a scrape, as the server sends it."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"{root}/metrics",
        "raw_path": b"",
        "query_string": b"",
        "root_path": "",
        "headers": [*headers, (b"authorization", SCRAPER["Authorization"])],
    }
    parts: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 200) == 200
        parts.append(message.get("body", b""))

    asyncio.run(app(scope, receive, send))
    return b"".join(parts)
