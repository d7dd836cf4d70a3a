"""A worker whose `spark-submit` is played by a script."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.orchestrators.fake_spark import FakeSpark, ResourceManager, connect


@pytest.fixture(autouse=True)
def table_that_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of most tests is in a store that does not exist."""
    operator = "delta_maintenance_airflow.operators.spark_base.DeltaJobOperator"
    monkeypatch.setattr(f"{operator}._require_possible", lambda *_: None)


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpark]:
    (tmp_path / "tmp").mkdir()
    fake = FakeSpark(tmp_path)
    monkeypatch.setenv("PATH", fake.path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    connect(monkeypatch, host="local[1]")
    yield fake
    gc.collect()


@pytest.fixture
def yarn(monkeypatch: pytest.MonkeyPatch, spark: FakeSpark) -> Iterator[type[ResourceManager]]:
    handler = type("Handler", (ResourceManager,), {"answers": [], "requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": address}
        connect(monkeypatch, host="yarn", extra=extra)
        yield handler
        server.shutdown()
        thread.join()
