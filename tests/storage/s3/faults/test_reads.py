"""Faults during listings, reads and deletions."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError, StorageAccessError, StorageError
from delta_maintenance.rest.failure import PAUSES
from delta_maintenance.storage.s3.client import S3Client, S3Failure, S3Options
from delta_maintenance.storage.s3.store import S3Store
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.faults.s3_faults import (
    DENIED,
    LOST_500,
    LOST_503,
    LOST_DROPPED,
    MIB,
    Fault,
    Faults,
    answer,
    passed,
)


def test_a_listing_with_a_failing_page_is_complete_or_an_error(
    s3_server: S3Server, s3_bucket: str, store: S3Store, faults: Faults
) -> None:
    s3_server.fill(s3_bucket, [f"t/{number:04}" for number in range(2_500)])
    faults.on("GET continuation-token", LOST_500, LOST_DROPPED)
    assert len(list(store.list_from(""))) == 2_500
    faults.on("GET continuation-token", passed, LOST_503, forever=True)
    with pytest.raises(StorageError, match="SlowDown"):
        list(store.list_from(""))
    faults.on("GET continuation-token", DENIED)
    with pytest.raises(StorageAccessError, match="grant s3:ListBucket"):
        list(store.list_from(""))


def test_a_listing_out_of_order_is_an_error(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"")
    store.put("b", b"")
    real = S3Client.send

    def send(client: S3Client, method: str, **parameters: object) -> object:
        page = real(client, method, **parameters)
        page["Contents"].reverse()
        return page

    monkeypatch.setattr(S3Client, "send", send)
    with pytest.raises(StorageError, match="in order"):
        list(store.list_from(""))


def cut_short(application: Application, environ: Environ, start: StartResponse) -> list[bytes]:
    """A body that ends before its announced length."""
    body = b"".join(application(environ, start))
    return [body[: len(body) // 2]]


def test_a_body_cut_short_is_read_again_or_an_error(store: S3Store, faults: Faults) -> None:
    store.put("x", b"0123456789")
    faults.on("GET /x", cut_short, cut_short)
    assert store.read("x") == b"0123456789"
    assert faults.injected == 2
    faults.on("GET /x", cut_short, forever=True)
    with pytest.raises(StorageError):
        store.read("x")


def test_a_file_replaced_while_it_is_read_is_an_error(store: S3Store) -> None:
    store.put("x", bytes(3 * MIB))
    with store.open("x") as file:
        assert file.read(10) == bytes(10)
        store.put("x", b"1" * 3 * MIB)
        with pytest.raises(StorageError, match="replaced while it was read"):
            file.read()
        store.delete("x")
        with pytest.raises(FileNotFoundError):
            file.read()


def test_unconfirmed_deletions_are_reported(store: S3Store, faults: Faults) -> None:
    def partly(application: Application, environ: Environ, start: StartResponse) -> list[bytes]:
        body = (
            b"<DeleteResult><Deleted><Key>t/a</Key></Deleted>"
            b"<Error><Key>t/b</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
            b"<Error><Key>t/c</Key><Code>NoSuchKey</Code></Error></DeleteResult>"
        )
        start("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    faults.on("POST delete", partly, partly, partly, LOST_500, DENIED)
    kept = store.delete_many(["a", "b", "c", "d"])
    assert list(kept) == ["b", "d"]
    assert isinstance(kept["b"], StorageAccessError) and "s3:DeleteObject" in str(kept["b"])
    assert "NotConfirmed" in str(kept["d"])
    with pytest.raises(StorageAccessError):
        store.delete("b")
    store.delete("c")
    assert list(store.delete_many(["x", "y"])) == ["x", "y"]


@pytest.mark.parametrize("fault", [LOST_500, LOST_503, answer(429, "Slow")])
def test_reads_are_retried_for_a_limited_time(
    store: S3Store, faults: Faults, pauses: list[float], fault: Fault
) -> None:
    store.put("x", b"data")
    faults.on("GET /x", *[fault] * len(PAUSES))
    assert store.read("x") == b"data"
    assert tuple(pauses) == PAUSES
    faults.on("GET /x", *[fault] * (len(PAUSES) + 1))
    with pytest.raises(StorageError) as got:
        store.read("x")
    assert got.value.retryable


def test_a_broken_connection_is_tried_again(
    store: S3Store, faults: Faults, pauses: list[float]
) -> None:
    store.put("x", b"data")
    faults.on("GET /x", *[LOST_DROPPED] * len(PAUSES))
    assert store.read("x") == b"data"
    # The HTTP client sends some of them again without telling anybody.
    assert 0 < len(pauses) <= faults.injected == len(PAUSES)
    faults.on("GET /x", LOST_DROPPED, forever=True)
    with pytest.raises(StorageError):
        store.read("x")


def test_a_missing_bucket_is_not_an_empty_table(s3_server: S3Server) -> None:
    with_s3 = S3Store(Address.parse("s3://no-such-bucket-anywhere/t"), s3_server.storage_options)
    calls: list[Callable[[], object]] = [
        lambda: list(with_s3.list_from("_delta_log")),
        lambda: with_s3.read("x"),
        lambda: with_s3.put("x", b""),
        lambda: with_s3.put_if_absent("x", b""),
    ]
    for call in calls:
        with pytest.raises(StorageAccessError, match="NoSuchBucket") as got:
            call()
        assert "\n" not in str(got.value)
    with_s3.close()


@pytest.mark.server
def test_no_server_at_all_is_a_failure_that_keeps_secrets() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        options = {
            "key": "the-key-id",
            "secret": "the-secret",
            "token": "the-token",
            "endpoint_url": f"http://127.0.0.1:{unused.getsockname()[1]}",
        }
        store = S3Store(
            Address.parse("s3://bucket/t"),
            client=S3Client(S3Options.parse(options), sleep=lambda _: None),
        )
        for call in (store.read, store.stat, store.delete):
            with pytest.raises(StorageError, match="EndpointConnectionError") as got:
                call("x")
            error: BaseException | None = got.value
            while error is not None:
                assert "the-secret" not in str(error) and "the-token" not in repr(error)
                error = error.__cause__
        store.close()


def test_secrets_in_an_answer_are_hidden(store: S3Store, faults: Faults) -> None:
    faults.on("GET /x", answer(403, "SignatureDoesNotMatch", applied=False))

    def telltale(application: Application, environ: Environ, start: StartResponse) -> list[bytes]:
        body = b"<Error><Code>AccessDenied</Code><Message>not testing-secret</Message></Error>"
        start("403 Forbidden", [("Content-Length", str(len(body)))])
        return [body]

    faults.on("GET /x", telltale)
    with pytest.raises(DeltaMaintenanceError, match=r"not \*\*\*") as got:
        store.read("x")
    assert "testing-secret" not in str(got.value)


def test_a_failure_of_the_client_is_reported_by_name() -> None:
    failure = S3Failure(status=None, code="ConnectTimeoutError", detail="")
    assert failure.is_unsure and str(failure) == "ConnectTimeoutError"
    assert not S3Failure(status=None, code="NoCredentialsError", detail="").is_unsure
