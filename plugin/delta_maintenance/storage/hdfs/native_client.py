"""HDFS calls over Hadoop's RPC protocol, through the package `hdfs-native`."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, Protocol, TypeVar

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.redaction import redact
from delta_maintenance.rest.failure import PAUSES, patiently
from delta_maintenance.storage.core.directory_store import Entry
from delta_maintenance.storage.core.option_values import require_package
from delta_maintenance.storage.hdfs.client import HdfsClient, HdfsFailure
from delta_maintenance.storage.hdfs.options import NativeOptions

R = TypeVar("R")
T = TypeVar("T")


class StepTimeoutError(TimeoutError):
    """A step took too long. The text of the error is the name of the step."""


class Step(Protocol):
    """Makes one call of an attempt, with its own time limit. Errors name it."""

    def __call__(self, name: str, call: Callable[[], R], /) -> R: ...


def within_steps(attempt: Callable[[Step], T], patience: float, *, name: str) -> T:
    """Returns the result of an attempt in which no step takes longer than `patience` seconds.

    `StepTimeoutError` if one does. Until the first step, its name is that of the attempt. The
    abandoned thread begins no further step, and does not keep the process alive. Work between the
    steps counts towards them.
    """
    done = threading.Event()
    # Held while a step begins and while an attempt is abandoned, so that no step begins afterwards.
    lock = threading.Lock()
    started = time.monotonic()
    is_abandoned = False
    results: list[T] = []
    errors: list[BaseException] = []

    def step(step_name: str, call: Callable[[], R]) -> R:
        nonlocal name, started
        with lock:
            if is_abandoned:
                raise StepTimeoutError(step_name)
            name, started = step_name, time.monotonic()
        return call()

    def run() -> None:
        try:
            results.append(attempt(step))
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not done.wait(max(0.0, started + patience - time.monotonic())):
            with lock:
                if time.monotonic() - started >= patience:
                    is_abandoned = True
                    raise StepTimeoutError(name)
    except BaseException:
        # Also if the caller is interrupted.
        is_abandoned = True
        raise
    if errors:
        raise errors.pop()
    return results.pop()


class NativeClient(HdfsClient):
    """Calls the name nodes of one file system and its data nodes. Thread-safe.

    The package has no timeouts, so each step of a call gets `patience` seconds. After a step that
    times out, the next call opens new connections. The asynchronous client of the package is not
    used: its destructor can deadlock, because it joins threads that wait for the GIL.
    """

    has_inodes = False

    def __init__(
        self,
        options: NativeOptions,
        *,
        patience: float = 60,
        sleep: Callable[[float], None] = time.sleep,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        super().__init__(sleep=sleep, pauses=pauses)
        require_package("hdfs_native", addresses="hdfs: addresses", extra="hdfs")
        self._options = options
        self._patience = patience
        self._native: Any = None
        self._native = self._open()

    def status(self, path: str) -> Entry:
        info = self._patiently("status", lambda native, _: native.get_file_info(path))
        return _entry(info, "")

    def entries(self, path: str, after: str = "") -> Iterator[Entry]:
        def list_directory(native: Any, step: Step) -> list[Any]:
            statuses, listing = [], iter(native.list_status(path, False))
            while (info := step("list", lambda: next(listing, None))) is not None:
                statuses.append(info)
            return statuses

        # The package can only list from the beginning, and listing a file returns the file itself.
        for info in self._patiently("list", list_directory):
            name = info.path.rpartition("/")[2]
            if info.path.rstrip("/") != path.rstrip("/") and name > after:
                yield _entry(info, name)

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        def once(native: Any, step: Step) -> bytes:
            reader = step("open", lambda: native.read(path))
            size = reader.file_length()
            position, chunks = min(offset, size), []
            end = size if length is None else min(position + length, size)
            while position < end:
                count = min(_CHUNK_SIZE, end - position)
                chunks.append(step("read", partial(reader.read_range, position, count)))
                position += count
            return b"".join(chunks)

        return self._patiently("read", once)

    def upload(self, path: str, source: BinaryIO, size: int) -> None:
        from hdfs_native import WriteOptions

        def once(native: Any, step: Step) -> None:
            options = WriteOptions(overwrite=False, create_parent=True)
            writer = step("create", lambda: native.create(path, options))
            while data := step("read the data", partial(source.read, _CHUNK_SIZE)):
                step("write", partial(writer.write, data))
            if size:
                step("sync", writer.hsync)
            step("close", writer.close)

        try:
            self._once("create", once)
        except HdfsFailure as failure:
            if failure.precondition_failed:
                # After a broken connection, the package repeats the call and finds the file of its
                # first attempt.
                raise HdfsFailure(status=503, code=failure.code, detail="sent twice") from None
            raise

    def rename(self, path: str, target: str, *, replace: bool) -> None:
        self._once("rename", lambda native, _: native.rename(path, target, replace))

    def delete(self, path: str) -> None:
        self._once("delete", lambda native, _: native.delete(path, False))

    def close(self) -> None:
        # The package closes its connections when it is garbage-collected.
        self._native = None

    def _patiently(self, name: str, attempt: Callable[[Any, Step], T]) -> T:
        return patiently(lambda: self._once(name, attempt), self.sleep, self.pauses)

    def _once(self, name: str, attempt: Callable[[Any, Step], T]) -> T:
        """Calls the client of the package once. `HdfsFailure` if that fails."""
        native = self._native or self._open()
        try:
            result = within_steps(partial(attempt, native), self._patience, name=name)
        except StepTimeoutError as late:
            detail = f"no answer to {late} in {self._patience:g} s"
            failure = HdfsFailure(status=None, code="TimeoutError", detail=detail)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            failure = _failure_of(error)
        else:
            self._native = native
            return result
        if failure.status is None:
            self._native = None
        raise failure

    def _open(self) -> Any:
        import hdfs_native

        options = self._options
        try:
            client = hdfs_native.Client(
                options.url,
                dict(options.properties),
                options.config_dir,
                kerberos_principal=options.kerberos_principal,
                kerberos_keytab=options.kerberos_keytab,
                kerberos_cache=options.kerberos_cache,
            )
            # The package's Python client wraps writers in objects whose finalizers send requests.
            return client.inner
        except Exception as error:
            raise InvalidRequestError(
                f"HDFS cannot be opened ({_failure_of(error)})",
                remedy="write hdfs://HOST:8020/PATH, or give Hadoop's configuration as config_dir "
                "or HADOOP_CONF_DIR",
            ) from None


def _entry(status: Any, name: str) -> Entry:
    return Entry(
        name=name,
        kind="directory" if status.isdir else "file",
        size=int(status.length),
        modified_ms=int(status.modification_time),
        tag=f"{status.length} {status.modification_time} {status.owner}",
    )


def _failure_of(error: BaseException) -> HdfsFailure:
    text = "".join(str(error).strip().splitlines()[:1])
    detail = redact(text)[:200]
    match error:
        case FileNotFoundError():
            return HdfsFailure(status=404, code="FileNotFoundException", detail=detail)
        case FileExistsError():
            return HdfsFailure(status=403, code="FileAlreadyExistsException", detail=detail)
        case OSError():
            return HdfsFailure(status=None, code=type(error).__name__, detail=detail)
    if remote_error := _REMOTE.match(text):
        code, message = remote_error[1], remote_error[2].partition(_LINE_END)[0].removesuffix('")')
        if code == "AccessControlException" and message.endswith(_NO_DIRECTORY):
            # A parent in the path is a file.
            code = "FileNotFoundException"
        status = 500 if code in _UNEXPECTED else 403
        return HdfsFailure(status=status, code=code, detail=redact(message)[:200])
    if text.startswith(_LOGIN) or "libgssapi" in text:
        if remote_error := _GSSAPI.match(text):
            is_expired = not _EXPIRED.isdisjoint(remote_error.group(1, 2))
            detail = (
                _TICKET_EXPIRED if is_expired else f"{remote_error[1]}: {remote_error[3]}"[:200]
            )
        return HdfsFailure(status=403, code="AuthenticationException", detail=detail)
    return HdfsFailure(status=500, code=type(error).__name__, detail=detail)


_CHUNK_SIZE = 4 << 20
_REMOTE = re.compile(r'(?:Fatal)?RPCError\("(?:\w+[.$])*(\w+)", "(.*)')
"""The format in which the package reports an exception of a server."""
_LINE_END = "\\n"
"""Separates the message from the Java stack trace."""
_NO_DIRECTORY = "(is not a directory)"
_LOGIN = ("SASLError", "GSSAPIError", "NoSASLMechanism")
_GSSAPI = re.compile(r'GSSAPIError\(.*routine_error: "(\w+)".*\}, (\d+), "([^"]*)')
"""The format of a GSSAPI error: its kind, the Kerberos code and a text for the kind."""
_EXPIRED = frozenset(("GSS_S_CONTEXT_EXPIRED", "GSS_S_CREDENTIALS_EXPIRED", "2529638944"))
"""Kinds of errors, and the code `KRB5KRB_AP_ERR_TKT_EXPIRED` without its sign."""
_TICKET_EXPIRED = "the Kerberos ticket has expired"
# Internal errors of the server.
_UNEXPECTED = frozenset(("NullPointerException", "RuntimeException", "ServerException"))
