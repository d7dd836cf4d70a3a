"""Notifications keep the address of a webhook secret: whoever knows it can post."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import redact

from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.notifications import _post

pytestmark = [pytest.mark.airflow, pytest.mark.server]
CANARY = "T000canary/B000canary/secret-of-the-webhook"


@pytest.fixture
def webhook() -> Iterator[str]:
    """The address of a webhook that refuses every message."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            moved = self.path.startswith("/moved")
            self.send_response(302 if moved else 404)
            if moved:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/services/{CANARY}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "refused",
    ["HTTP status 404", "HTTP status 302", "UnicodeEncodeError", "ConnectionError", "has no URL"],
)
def test_a_failed_notification_shows_no_part_of_the_address(
    airflow_db: None,
    webhook: str,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = {
        "HTTP status 302": webhook.replace("/services", "/moved"),
        "ConnectionError": f"http://127.0.0.1:1/{CANARY}",
        "has no URL": f"host/{CANARY}",
    }
    connection = {"conn_type": "http", "host": other.get(refused, webhook)}
    if refused == "UnicodeEncodeError":
        connection["password"] = "canary-\N{HORIZONTAL ELLIPSIS}"
    monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps(connection))
    caplog.set_level(logging.INFO)
    with pytest.raises(AirflowException, match=refused) as failure:
        _post("chat", "hello")
    assert "connection chat" in str(failure.value) and "canary" not in repr(failure.value)
    assert failure.value.__suppress_context__ or failure.value.__context__ is None
    # The HTTP client logs the address if somebody asks it to.
    used = "" if refused == "has no URL" else str(connection["host"])
    assert "canary" not in str(redact(f"{caplog.text} {used}"))
