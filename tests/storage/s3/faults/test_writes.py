"""No fault of the server or the network may lose an acknowledged write or name a wrong winner."""

from __future__ import annotations

import io
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from delta_maintenance.errors import (
    CommitUnknownError,
    RefusedError,
    StorageAccessError,
    StorageError,
)
from delta_maintenance.rest.failure import PAUSES
from delta_maintenance.storage.core import Put
from delta_maintenance.storage.s3.client import S3Client
from delta_maintenance.storage.s3.store import S3Store
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.faults.s3_faults import (
    APPLIED_THEN_500,
    APPLIED_THEN_503,
    APPLIED_THEN_DROPPED,
    CONFLICT,
    DENIED,
    LOST_500,
    LOST_503,
    LOST_DROPPED,
    MIB,
    PATH,
    Fault,
    Faults,
    answer,
    passed,
    refuted_without_condition,
    without,
)

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


def test_an_error_on_every_answer_does_not_hide_success(
    open_s3: Callable[..., S3Store], faults: Faults
) -> None:
    faults.on("PUT .json", APPLIED_THEN_500, forever=True)
    assert open_s3().put_if_absent(PATH, b"first") is Put.DONE
    assert open_s3().put_if_absent(PATH, b"other") is Put.EXISTS
    assert open_s3().put_if_absent(PATH, b"first") is Put.EXISTS
    assert open_s3().read(PATH) == b"first"


def test_equal_bytes_of_another_call_do_not_count_as_ours(
    open_s3: Callable[..., S3Store], faults: Faults
) -> None:
    assert open_s3().put_if_absent(PATH, b"same") is Put.DONE
    faults.on("PUT .json", APPLIED_THEN_500)
    assert open_s3().put_if_absent(PATH, b"same") is Put.EXISTS


def test_a_writer_between_a_lost_request_and_its_retry_wins(
    open_s3: Callable[..., S3Store], faults: Faults
) -> None:
    rival = open_s3()

    def overtaken(
        application: Application, environ: Environ, start: StartResponse
    ) -> Iterable[bytes]:
        # In a thread, because this one holds the answer of the first request.
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
    with pytest.raises(CommitUnknownError, match="PreconditionFailed.*; reading it back: 403"):
        store.put_if_absent(PATH, b"data")


def test_an_ambiguous_outcome_remains_ambiguous_after_a_refusal(
    store: S3Store, faults: Faults
) -> None:
    faults.on("PUT .json", LOST_500, DENIED)
    with pytest.raises(CommitUnknownError):
        store.put_if_absent(PATH, b"data")


def test_a_file_that_has_vanished_is_not_written_again(
    store: S3Store, faults: Faults, s3_server: S3Server
) -> None:
    faults.on("PUT .json", answer(412, "PreconditionFailed"))
    with pytest.raises(CommitUnknownError):
        store.put_if_absent(PATH, b"data")
    assert sum("PUT" in request and PATH in request for request in s3_server.requests) == 1


def test_permanent_conflicts_are_a_definite_failure(
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
def test_without_metadata_the_bytes_identify_the_writer(
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
def test_under_random_faults_each_version_has_at_most_one_winner(
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
def test_a_server_that_ignores_conditions_is_detected_before_writing(
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
            # The error of botocore for an unknown parameter.
            parameters["IfNonsense"] = parameters.pop("IfNoneMatch")
        return real(client, method, **parameters)

    monkeypatch.setattr(S3Client, "send", send)
    with pytest.raises(RefusedError, match="ParamValidationError"):
        store.put_if_absent(PATH, b"data")


def test_the_probe_may_remain_without_permission_to_delete(
    s3_server: S3Server, store: S3Store
) -> None:
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
    # What replaces it needs no condition, so it is sent again as a whole.
    faults.on("POST uploadId", fault)
    store.put_from("x", io.BytesIO(data[::-1]))
    assert faults.injected == 2
    assert store.read("x") == data[::-1]


def test_a_large_stream_with_failed_parts_is_aborted_without_a_file(
    open_s3: Callable[..., S3Store], faults: Faults, s3_server: S3Server
) -> None:
    store = open_s3(multipart_size=1, part_size=5 * MIB)
    faults.on("PUT partNumber=2", LOST_500, forever=True)
    with pytest.raises(StorageError) as got, store.create("x") as file:
        file.write(bytes(6 * MIB))
    assert type(got.value) is StorageError
    assert store.stat("x") is None
    assert sum(request.startswith("DELETE") for request in s3_server.requests) == 2
