"""No fault of the server or the network may lose an acknowledged write or name a wrong winner."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from emulators.s3_server import Application, Environ, S3Server, StartResponse

from delta_maintenance.errors import (
    CommitUnknownError,
    DeltaMaintenanceError,
    RefusedError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance.storage.core.base import Put
from delta_maintenance.storage.core.request_failure import PAUSES
from delta_maintenance.storage.s3.client import S3Client, S3Failure
from delta_maintenance.storage.s3.options import S3Options
from delta_maintenance.storage.s3.store import S3Store

Fault = Callable[[Application, Environ, StartResponse], Iterable[bytes]]
MIB = 1 << 20
PATH = "_delta_log/00000000000000000007.json"


class Faults:
    """Answers some requests of a server with faults, one after the other, and counts them."""

    def __init__(self, server: S3Server) -> None:
        self.injected = 0
        self._server = server
        self._queues: dict[str, Iterator[Fault]] = {}
        server.intercept = self._wrap

    def on(self, request: str, *faults: Fault, forever: bool = False) -> None:
        """`request` is a method and a text of the URI; afterwards, or `forever`, faults repeat."""

        def queue() -> Iterator[Fault]:
            yield from faults
            while forever:
                yield faults[-1]

        self._queues[request] = queue()

    def _wrap(self, application: Application) -> Application:
        def handler(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            # The store's own probe is not what is tested here.
            if ".probe" not in environ["REQUEST_URI"]:
                for request, queue in self._queues.items():
                    method, _, text = request.partition(" ")
                    if method == environ["REQUEST_METHOD"] and text in environ["REQUEST_URI"]:
                        fault = next(queue, None)
                        if fault is not None:
                            self.injected += 1
                            return fault(application, environ, start)
            return application(environ, start)

        return handler


def answer(status: int, code: str, *, applied: bool = False) -> Fault:
    """An error answer, with or without the request having taken effect."""

    def fault(application: Application, environ: Environ, start: StartResponse) -> list[bytes]:
        if applied:
            list(application(environ, lambda *_: None))
        body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        if environ["REQUEST_METHOD"] == "HEAD":
            body = b""
        start(f"{status} Injected", [("Content-Length", str(len(body)))])
        return [body]

    return fault


def dropped(*, applied: bool = False) -> Fault:
    """The connection breaks before any answer."""

    def fault(application: Application, environ: Environ, start: StartResponse) -> list[bytes]:
        if applied:
            list(application(environ, lambda *_: None))
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        start("200 OK", [])
        return []

    return fault


def refuted_without_condition(
    application: Application, environ: Environ, start: StartResponse
) -> Iterable[bytes]:
    """The 412 of servers that do not say which condition it was; other answers pass."""
    seen: list[tuple[str, list[tuple[str, str]]]] = []
    body = application(environ, lambda status, headers, *_: seen.append((status, headers)))
    status, headers = seen[0]
    if status.startswith("412"):
        return answer(412, "PreconditionFailed")(application, environ, start)
    start(status, headers)
    return body


def passed(application: Application, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    return application(environ, start)


def without(*headers: str) -> Callable[[Application], Application]:
    """A server that takes no notice of some request headers."""

    def wrap(application: Application) -> Application:
        def handler(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            for header in headers:
                for key in [key for key in environ if key.startswith(header)]:
                    del environ[key]
            return application(environ, start)

        return handler

    return wrap


APPLIED_THEN_500 = answer(500, "InternalError", applied=True)
APPLIED_THEN_503 = answer(503, "SlowDown", applied=True)
APPLIED_THEN_DROPPED = dropped(applied=True)
LOST_500 = answer(500, "InternalError")
LOST_503 = answer(503, "SlowDown")
LOST_DROPPED = dropped()
CONFLICT = answer(409, "ConditionalRequestConflict")
DENIED = answer(403, "AccessDenied")


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def open_s3(
    s3_server: S3Server, s3_bucket: str, pauses: list[float]
) -> Iterator[Callable[..., S3Store]]:
    opened: list[S3Store] = []

    def open_one(**options: Any) -> S3Store:
        client = S3Client(S3Options.parse(s3_server.storage_options), sleep=pauses.append)
        opened.append(S3Store(f"s3://{s3_bucket}/t", client=client, **options))
        return opened[-1]

    yield open_one
    s3_server.intercept = None
    for store in opened:
        store.close()


@pytest.fixture
def store(open_s3: Callable[..., S3Store]) -> S3Store:
    return open_s3()


@pytest.fixture
def faults(s3_server: S3Server) -> Faults:
    return Faults(s3_server)


# Who won.


@pytest.mark.conformance("LOG-09")
@pytest.mark.parametrize(
    ("injected", "count"),
    [
        ([APPLIED_THEN_500], 1),
        ([APPLIED_THEN_503], 1),
        ([APPLIED_THEN_DROPPED], 1),
        ([LOST_500, LOST_503, LOST_DROPPED], 3),
        ([LOST_500, APPLIED_THEN_DROPPED], 2),
        ([CONFLICT], 1),
        ([CONFLICT, CONFLICT, APPLIED_THEN_500], 3),
        ([refuted_without_condition] * 2, 2),
    ],
    ids=lambda value: None if isinstance(value, list) else f"{value}-faults",
)
def test_a_faulty_answer_changes_neither_winner_nor_content(
    open_s3: Callable[..., S3Store], faults: Faults, injected: list[Fault], count: int
) -> None:
    faults.on("PUT .json", *injected)
    assert open_s3().put_if_absent(PATH, b"first") is Put.DONE
    assert open_s3().put_if_absent(PATH, b"other") is Put.EXISTS
    assert open_s3().read(PATH) == b"first"
    assert faults.injected == count


def test_an_error_on_every_answer_is_seen_through(
    open_s3: Callable[..., S3Store], faults: Faults
) -> None:
    faults.on("PUT .json", APPLIED_THEN_500, forever=True)
    assert open_s3().put_if_absent(PATH, b"first") is Put.DONE
    assert open_s3().put_if_absent(PATH, b"other") is Put.EXISTS
    assert open_s3().put_if_absent(PATH, b"first") is Put.EXISTS
    assert open_s3().read(PATH) == b"first"


def test_equal_bytes_of_another_call_are_not_taken_for_ours(
    open_s3: Callable[..., S3Store], faults: Faults
) -> None:
    assert open_s3().put_if_absent(PATH, b"same") is Put.DONE
    faults.on("PUT .json", APPLIED_THEN_500)
    assert open_s3().put_if_absent(PATH, b"same") is Put.EXISTS


def test_who_comes_between_a_lost_request_and_its_retry_wins(
    open_s3: Callable[..., S3Store], faults: Faults
) -> None:
    rival = open_s3()

    def overtaken(
        application: Application, environ: Environ, start: StartResponse
    ) -> Iterable[bytes]:
        # In a thread, as this one holds the answer of the first.
        with ThreadPoolExecutor(1) as pool:
            won = pool.submit(rival.put_if_absent, PATH, b"rival").result()
        assert won is Put.DONE
        return LOST_500(application, environ, start)

    faults.on("PUT .json", overtaken)
    assert open_s3().put_if_absent(PATH, b"ours!") is Put.EXISTS
    assert rival.read(PATH) == b"rival"


@pytest.mark.parametrize("fault", [LOST_500, LOST_503, LOST_DROPPED])
def test_a_write_that_never_gets_an_answer_is_unknown(
    store: S3Store, faults: Faults, pauses: list[float], fault: Fault
) -> None:
    faults.on("PUT .json", fault, forever=True)
    with pytest.raises(CommitUnknownError, match=f"file {PATH}") as got:
        store.put_if_absent(PATH, b"data")
    assert not got.value.retryable
    assert tuple(pauses) == PAUSES
    assert store.stat(PATH) is None


def test_a_write_whose_outcome_cannot_be_read_is_unknown(store: S3Store, faults: Faults) -> None:
    faults.on("PUT .json", APPLIED_THEN_500)
    faults.on("HEAD .json", DENIED, forever=True)
    with pytest.raises(CommitUnknownError):
        store.put_if_absent(PATH, b"data")


def test_a_doubt_outlives_a_later_clear_refusal(store: S3Store, faults: Faults) -> None:
    faults.on("PUT .json", LOST_500, DENIED)
    with pytest.raises(CommitUnknownError):
        store.put_if_absent(PATH, b"data")


def test_a_file_that_was_there_and_is_gone_is_not_written_again(
    store: S3Store, faults: Faults, s3_server: S3Server
) -> None:
    faults.on("PUT .json", answer(412, "PreconditionFailed"))
    with pytest.raises(CommitUnknownError):
        store.put_if_absent(PATH, b"data")
    assert sum("PUT" in request and PATH in request for request in s3_server.requests) == 1


def test_conflicts_without_end_are_a_certain_failure(
    store: S3Store, faults: Faults, pauses: list[float]
) -> None:
    faults.on("PUT .json", CONFLICT, forever=True)
    with pytest.raises(StorageError, match="ConditionalRequestConflict") as got:
        store.put_if_absent(PATH, b"data")
    assert got.value.retryable
    assert tuple(pauses) == PAUSES


def test_a_denied_write_names_the_permission(store: S3Store, faults: Faults) -> None:
    faults.on("PUT .json", DENIED, forever=True)
    with pytest.raises(StorageAccessError, match="grant s3:PutObject") as got:
        store.put_if_absent(PATH, b"data")
    assert not got.value.retryable
    assert faults.injected == 1


@pytest.mark.parametrize("theirs", [None, b"theirs", b"longer than ours"])
def test_a_server_that_keeps_no_metadata_is_judged_by_the_bytes(
    s3_server: S3Server, s3_bucket: str, open_s3: Callable[..., S3Store], theirs: bytes | None
) -> None:
    store = open_s3(part_size=4)
    store.put_if_absent("warm-up", b"")
    if theirs is not None:
        s3_server.fill(s3_bucket, [f"t/{PATH}"], theirs)
    strip, once = without("HTTP_X_AMZ_META"), iter([APPLIED_THEN_500])

    def intercept(application: Application) -> Application:
        def handler(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] == "PUT" and (fault := next(once, None)):
                return fault(strip(application), environ, start)
            return strip(application)(environ, start)

        return handler

    s3_server.intercept = intercept
    outcome = store.put_if_absent(PATH, b"ours!!")
    assert outcome is (Put.DONE if theirs is None else Put.EXISTS)
    assert store.read(PATH) == (theirs or b"ours!!")


@pytest.mark.conformance("LOG-09")
def test_under_random_faults_at_most_one_writer_of_each_version_is_told_it_won(
    s3_server: S3Server, open_s3: Callable[..., S3Store]
) -> None:
    seed = int(os.environ.get("SEED", time.time_ns()))
    print(f"SEED={seed}")
    dice, lock = random.Random(seed), threading.Lock()
    kinds = [APPLIED_THEN_500, APPLIED_THEN_503, APPLIED_THEN_DROPPED]
    kinds += [LOST_500, LOST_503, LOST_DROPPED, CONFLICT, refuted_without_condition]
    injected = 0

    def intercept(application: Application) -> Application:
        def handler(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            nonlocal injected
            with lock:
                fault = dice.choice(kinds) if dice.random() < 0.5 else passed
                injected += fault is not passed
            return fault(application, environ, start)

        return handler

    stores = [open_s3() for _ in range(4)]
    for store in stores:
        store.put_if_absent("warm-up", b"")
    s3_server.intercept = intercept

    def write(writer: int, version: int) -> Put | None:
        try:
            return stores[writer].put_if_absent(f"{version}.json", f"{writer}".encode())
        except (CommitUnknownError, StorageError):
            return None

    outcomes: dict[int, list[Put | None]] = {}
    with ThreadPoolExecutor(4) as pool:
        # As many versions as it takes to meet enough faults: dice promise nothing.
        while injected < 24 or len(outcomes) < 8:
            version = len(outcomes)
            tasks = [pool.submit(write, writer, version) for writer in range(4)]
            outcomes[version] = [task.result() for task in tasks]
    s3_server.intercept = None
    for version, told in outcomes.items():
        assert told.count(Put.DONE) <= 1
        if stores[0].stat(f"{version}.json") is None:
            assert Put.DONE not in told and Put.EXISTS not in told
            continue
        winner = int(stores[0].read(f"{version}.json"))
        assert told[winner] is not Put.EXISTS
        assert Put.DONE not in told or told[winner] is Put.DONE
    assert any(Put.DONE in told for told in outcomes.values())


# Servers without conditional writes.


@pytest.mark.conformance("LOG-09")
def test_a_server_that_ignores_the_condition_is_found_out_before_anything_is_written(
    s3_server: S3Server, store: S3Store
) -> None:
    s3_server.intercept = without("HTTP_IF_NONE_MATCH")
    with pytest.raises(RefusedError, match=f"file {PATH}: the store has no conditional put"):
        store.put_if_absent(PATH, b"data")
    assert list(store.list_from("_delta_log")) == []
    assert store.root in repr(store)


@pytest.mark.conformance("LOG-09")
def test_a_server_that_does_not_know_the_condition_is_refused(
    s3_server: S3Server, store: S3Store
) -> None:
    def intercept(application: Application) -> Application:
        def handler(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            fault = answer(501, "NotImplemented") if "HTTP_IF_NONE_MATCH" in environ else passed
            return fault(application, environ, start)

        return handler

    s3_server.intercept = intercept
    with pytest.raises(RefusedError, match="NotImplemented"):
        store.put_if_absent(PATH, b"data")
    store.put("hint", b"needs no condition")


def test_a_client_that_does_not_know_the_condition_is_refused(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = S3Client.send

    def send(client: S3Client, method: str, **parameters: object) -> object:
        if "IfNoneMatch" in parameters:
            # What botocore says to a parameter that it never heard of.
            parameters["IfNonsense"] = parameters.pop("IfNoneMatch")
        return real(client, method, **parameters)

    monkeypatch.setattr(S3Client, "send", send)
    with pytest.raises(RefusedError, match="ParamValidationError"):
        store.put_if_absent(PATH, b"data")


def test_the_probe_may_stay_where_nobody_may_delete(s3_server: S3Server, store: S3Store) -> None:
    def intercept(application: Application) -> Application:
        def handler(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            fault = DENIED if environ["REQUEST_METHOD"] == "DELETE" else passed
            return fault(application, environ, start)

        return handler

    s3_server.intercept = intercept
    assert store.put_if_absent(PATH, b"data") is Put.DONE
    probe, commit = [status.path for status in store.list_from("_delta_log")]
    assert commit == PATH and probe.endswith(".probe")


# Large streams.


@pytest.mark.parametrize("fault", [APPLIED_THEN_500, APPLIED_THEN_DROPPED, LOST_500, CONFLICT])
def test_a_large_stream_survives_a_fault_of_its_last_request(
    open_s3: Callable[..., S3Store], faults: Faults, fault: Fault
) -> None:
    store = open_s3(multipart_size=1, part_size=5 * MIB)
    data = os.urandom(5 * MIB + 1)
    faults.on("POST uploadId", fault)
    with store.create("x") as file:
        file.write(data)
    assert faults.injected == 1
    assert store.read("x") == data


def test_a_large_stream_whose_parts_fail_is_given_up_with_nothing_written(
    open_s3: Callable[..., S3Store], faults: Faults, s3_server: S3Server
) -> None:
    store = open_s3(multipart_size=1, part_size=5 * MIB)
    faults.on("PUT partNumber=2", LOST_500, forever=True)
    with pytest.raises(StorageError) as got, store.create("x") as file:
        file.write(bytes(6 * MIB))
    assert type(got.value) is StorageError
    assert store.stat("x") is None
    assert sum(request.startswith("DELETE") for request in s3_server.requests) == 2


# Listings, reads, deletes.


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


def test_what_is_not_confirmed_deleted_is_reported(store: S3Store, faults: Faults) -> None:
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
def test_reads_are_patient_for_a_while(
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


def test_a_bucket_that_does_not_exist_is_no_empty_table(s3_server: S3Server) -> None:
    with_s3 = S3Store("s3://no-such-bucket-anywhere/t", s3_server.storage_options)
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
            "s3://bucket/t", client=S3Client(S3Options.parse(options), sleep=lambda _: None)
        )
        for call in (store.read, store.stat, store.delete):
            with pytest.raises(StorageError, match="EndpointConnectionError") as got:
                call("x")
            error: BaseException | None = got.value
            while error is not None:
                assert "the-secret" not in str(error) and "the-token" not in repr(error)
                error = error.__cause__
        store.close()


def test_secrets_in_an_answer_are_blotted_out(store: S3Store, faults: Faults) -> None:
    faults.on("GET /x", answer(403, "SignatureDoesNotMatch", applied=False))

    def telltale(application: Application, environ: Environ, start: StartResponse) -> list[bytes]:
        body = b"<Error><Code>AccessDenied</Code><Message>not testing-secret</Message></Error>"
        start("403 Forbidden", [("Content-Length", str(len(body)))])
        return [body]

    faults.on("GET /x", telltale)
    with pytest.raises(DeltaMaintenanceError, match=r"not \*\*\*") as got:
        store.read("x")
    assert "testing-secret" not in str(got.value)


def test_a_failure_of_the_client_is_told_by_its_name() -> None:
    failure = S3Failure(status=None, code="ConnectTimeoutError", said="")
    assert failure.unanswered and str(failure) == "ConnectTimeoutError"
    assert not S3Failure(status=None, code="NoCredentialsError", said="").unanswered
