"""Nothing that a store says, shows or logs holds a secret, whatever goes wrong."""

from __future__ import annotations

import logging
import pickle
import socket
import traceback
from collections.abc import Callable
from urllib.parse import unquote

import pytest

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.rest import failure as request_failure
from delta_maintenance.storage import open_store
from delta_maintenance.storage.addresses import SharedClients
from delta_maintenance.storage.core import Store, conditional_put
from tests.support.hostile.canaries import OPTIONS, SECRET, echo, hang_up
from tests.support.servers.loopback import Reply, Request, serve


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no client try a second time."""
    for module in (request_failure, conditional_put):
        monkeypatch.setattr(module, "PAUSES", ())


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("server", [echo, hang_up, None])
@pytest.mark.server
def test_secrets_are_in_no_error_text_representation_or_log(
    kind: str,
    server: Callable[[Request], Reply] | None,
    impatient: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, options = OPTIONS[kind]
    caplog.set_level(logging.DEBUG)
    # Only this library's own clients: SDKs that log what they sign are not turned on by us.
    logging.getLogger("botocore").setLevel(logging.INFO)
    texts = []

    def try_everything(url: str) -> None:
        # A client whose pauses are none tries once.
        store = open_store(address, options(url), clients=SharedClients(pauses=()))
        texts.extend((repr(store), str(store), str(store.addresses)))
        calls: list[Callable[[Store], object]] = [
            lambda store: store.read("x"),
            lambda store: store.stat("x"),
            lambda store: store.put("x", b"1"),
            lambda store: store.put_if_absent("x", b"1"),
            lambda store: list(store.list_from("d")),
            lambda store: store.delete("x"),
        ]
        for call in calls:
            with pytest.raises(DeltaMaintenanceError) as got:
                call(store)
            texts.append(repr(got.value))
            texts.append("".join(traceback.format_exception(got.value)))
            assert "\n" not in str(got.value)
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(store)
        store.close()

    if server is None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            try_everything(f"http://127.0.0.1:{unused.getsockname()[1]}")
    else:
        with serve(server) as url:
            monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", url)
            try_everything(url)
    shown = unquote("\n".join([*texts, caplog.text]))
    assert len(texts) > 10
    assert SECRET not in shown and SECRET.rstrip("=") not in shown
