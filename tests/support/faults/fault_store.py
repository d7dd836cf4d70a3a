"""A store that fails at a chosen step, to test crashes and faults.

Run an operation once without a fault to learn its steps, then once per step and fault:

    trial = FaultStore(copy_of_the_table())
    run(trial)
    for at, fault in faults(trial.trace):
        with suppress(SimulatedCrash, DeltaMaintenanceError):
            run(FaultStore(copy_of_the_table(), at=at, fault=fault))
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO, Literal, TypeVar

import pyarrow as pa

from delta_maintenance.errors import CommitUnknownError, StorageError
from delta_maintenance.storage.core import FileStatus, Put, Skip, Store

Answer = TypeVar("Answer")
StepKind = Literal[
    "list_from", "list_tree", "stat", "read", "open", "put_if_absent", "put", "create", "delete"
]

_READS = ("read", "open")
_CREATES = ("put_if_absent", "create")
_WRITES = (*_CREATES, "put")


class SimulatedCrash(BaseException):
    """The process died: no error handler may catch this."""


class Fault(Enum):
    """The failure of a step."""

    CRASH_BEFORE = "crash before"
    """The process dies; the step has no effect."""
    CRASH_AFTER = "crash after"
    """The process dies after the step has taken effect."""
    CRASH_WITHIN = "crash within"
    """The process dies while writing; a temporary file contains half of the bytes, as on a disk."""
    FAILURE = "failure"
    """The store fails; the step has no effect."""
    LOST_ANSWER = "lost answer"
    """The step takes effect, and the store fails."""
    NOT_FOUND = "not found"
    """The file does not exist, as after a clean-up by another process."""

    def hits(self, step: Step) -> bool:
        """Whether the fault is possible at such a step, and differs from the other faults."""
        match self:
            case Fault.CRASH_WITHIN:
                return step.kind in _WRITES
            case Fault.CRASH_AFTER | Fault.LOST_ANSWER:
                return step.kind in (*_WRITES, "delete")
            case Fault.NOT_FOUND:
                return step.kind in _READS
            case _:
                return True


@dataclass(frozen=True, slots=True)
class Step:
    """One call to a store."""

    kind: StepKind
    path: str
    """The path of the file, or of the listed directory."""


def faults(trace: Sequence[Step]) -> Iterator[tuple[int, Fault]]:
    """Every fault of every step: the number of the step, from 0, and the fault."""
    for at, step in enumerate(trace):
        for fault in Fault:
            if fault.hits(step):
                yield at, fault


class FaultStore(Store):
    """The files of another store, with a record of every call and a fault at one of them.

    Creating a file counts as one step, at the end of the block. After a crash every further call,
    of any thread, raises `SimulatedCrash` and has no effect. Any other fault happens once.
    """

    def __init__(self, store: Store, *, at: int | None = None, fault: Fault | None = None) -> None:
        self.address = store.address
        self.trace: list[Step] = []
        """The calls so far, in order."""
        self.crashed = False
        self._store = store
        self._at = at
        self._fault = fault
        self._lock = threading.Lock()

    def list_from(self, directory: str, start: str = "") -> Iterator[FileStatus]:
        # Called here, so that an invalid path is refused at the call, as by other stores.
        files = self._store.list_from(directory, start)
        return self._list(directory, files)

    def stat(self, path: str) -> FileStatus | None:
        return self._take(Step("stat", path), lambda: self._store.stat(path))

    def read(self, path: str) -> bytes:
        return self._take(Step("read", path), lambda: self._store.read(path))

    def read_head(self, path: str, size: int) -> bytes:
        return self._take(Step("read", path), lambda: self._store.read_head(path, size))

    def open(self, path: str) -> BinaryIO:
        return self._take(Step("open", path), lambda: self._store.open(path))

    def put_if_absent(self, path: str, data: bytes) -> Put:
        step = Step("put_if_absent", path)
        return self._take(step, lambda: self._store.put_if_absent(path, data), data)

    def put(self, path: str, data: bytes) -> None:
        self._take(Step("put", path), lambda: self._store.put(path, data), data)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        step = Step("create", path)
        self._require_alive()
        with self._store.create(path) as sink:
            yield sink
            fault = self._before(step, b"half of it")
        self._after(step, fault)

    def delete(self, path: str) -> None:
        self._take(Step("delete", path), lambda: self._store.delete(path))

    def list_tree(self, directory: str = "", *, skip: Skip | None = None) -> Iterator[pa.Table]:
        batches = self._store.list_tree(directory, skip=skip)
        yield from self._take(Step("list_tree", directory), lambda: list(batches))

    def close(self) -> None:
        self._store.close()

    def _list(self, directory: str, files: Iterator[FileStatus]) -> Iterator[FileStatus]:
        yield from self._take(Step("list_from", directory), lambda: list(files))

    def _take(self, step: Step, call: Callable[[], Answer], data: bytes = b"") -> Answer:
        fault = self._before(step, data)
        answer = call()
        self._after(step, fault)
        return answer

    def _before(self, step: Step, data: bytes) -> Fault | None:
        """Records the step; raises if its fault prevents its effect."""
        with self._lock:
            self._require_alive()
            fault = self._fault if len(self.trace) == self._at else None
            self.trace.append(step)
            self.crashed = fault in (Fault.CRASH_BEFORE, Fault.CRASH_WITHIN)
        match fault:
            case Fault.CRASH_WITHIN:
                directory, slash, name = step.path.rpartition("/")
                self._store.put(f"{directory}{slash}.{name}.torn.tmp", data[: len(data) // 2])
            case Fault.FAILURE:
                raise StorageError("the store failed on purpose", file=step.path)
            case Fault.NOT_FOUND:
                raise FileNotFoundError(errno.ENOENT, "gone on purpose", step.path)
        self._require_alive()
        return fault

    def _after(self, step: Step, fault: Fault | None) -> None:
        """Raises if the fault of the step hides its effect."""
        if fault is Fault.CRASH_AFTER:
            self.crashed = True
            self._require_alive()
        if fault is Fault.LOST_ANSWER:
            error = CommitUnknownError if step.kind in _CREATES else StorageError
            raise error("the answer was lost on purpose", file=step.path)

    def _require_alive(self) -> None:
        if self.crashed:
            raise SimulatedCrash("the process is gone")
