from __future__ import annotations

import gzip
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_maintenance.rest.client import HttpSession, NoAnswer
from tests.support.servers.loopback import Hangup, Reply, Request, serve


@pytest.fixture
def session() -> Iterator[HttpSession]:
    session = HttpSession(timeout=(60, 60))
    yield session
    session.close()


@pytest.mark.server
def test_a_request_is_sent_once_whatever_the_answer(session: HttpSession) -> None:
    seen: list[str] = []

    def answer(request: Request) -> Reply:
        seen.append(request.target)
        if request.target == "/gone":
            raise Hangup
        return Reply(status=int(request.target[1:]), headers={"Location": "/elsewhere"})

    with serve(answer) as url:
        for status in (200, 301, 307, 401, 429, 500, 503):
            assert session.send("PUT", f"{url}/{status}", {}, b"x").status == status
        with pytest.raises(NoAnswer):
            session.send("PUT", f"{url}/gone", {}, b"x")
    assert seen == ["/200", "/301", "/307", "/401", "/429", "/500", "/503", "/gone"]


@pytest.mark.server
def test_a_truncated_body_is_not_an_answer(session: HttpSession) -> None:
    def answer(request: Request) -> Reply:
        # The connection is closed afterwards.
        headers = {"Content-Length": "10", "Connection": "close"}
        return Reply(status=200, headers=headers, body=b"half!")

    with serve(answer) as url, pytest.raises(NoAnswer):
        session.send("GET", url, {})


@pytest.mark.server
def test_a_body_is_not_decoded(session: HttpSession) -> None:
    stored = gzip.compress(b"data")

    def answer(request: Request) -> Reply:
        return Reply(status=200, headers={"Content-Encoding": "gzip"}, body=stored)

    with serve(answer) as url:
        assert session.send("GET", url, {}).body == stored


@pytest.mark.server
def test_stored_passwords_do_not_replace_credentials(
    session: HttpSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(file))

    def answer(request: Request) -> Reply:
        return Reply(status=200, body=request.headers["Authorization"].encode())

    with serve(answer) as url:
        assert session.send("GET", url, {"Authorization": "Bearer ours"}).body == b"Bearer ours"


@pytest.mark.server
def test_a_failure_shows_the_reason_without_the_address(session: HttpSession) -> None:
    with serve(lambda request: Reply(status=200)) as url:
        pass
    with pytest.raises(NoAnswer, match="Connection refused") as got:
        session.send("GET", f"{url}/path?{'sig'}=1234", {})
    assert "sig=1234" not in "".join(traceback.format_exception(got.value))
    assert got.value.__context__ is None
