"""Runs an operation once for every fault of every store call; equal outcomes are checked once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from tests.support.faults.fault_store import Fault, FaultStore, SimulatedCrash, Step, faults

Result = TypeVar("Result")
Files = dict[str, tuple[bytes, int]]
"""Content and time in milliseconds, by path."""

_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def files_of(store: Store) -> Files:
    """Returns all files of a store."""
    return {
        path: (store.read(path), modified_ms)
        for batch in store.list_tree()
        for path, modified_ms in zip(
            batch["path"].to_pylist(), batch["modified_ms"].to_pylist(), strict=True
        )
    }


def store_of(files: Files, *, now_ms: Callable[[], int]) -> MemoryStore:
    """Returns a store in memory with these files, whose clock is then `now_ms`."""
    store = MemoryStore()
    for path, (data, modified_ms) in files.items():
        store.now_ms = lambda modified_ms=modified_ms: modified_ms
        store.put(path, data)
    store.now_ms = now_ms
    return store


def distinct_faults(trace: Sequence[Step]) -> Iterator[tuple[int, Fault]]:
    """Yields the faults of these steps, except crashes that leave the same files as other crashes.

    A crash before a step leaves the same files as a crash after the last step that changed
    anything. Only a crash before the first such step has no equivalent.
    """
    reads = ("list_from", "list_tree", "stat", "read", "open")
    first = next((at for at, step in enumerate(trace) if step.kind not in reads), 0)
    for at, fault in faults(trace):
        if fault is not Fault.CRASH_BEFORE or at == first:
            yield at, fault


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Result]):
    """The table after one fault."""

    step: Step
    fault: Fault
    store: MemoryStore
    result: Result | None
    """The result of the operation, unless it failed."""
    is_new: bool
    """Whether no earlier fault left the same files, ignoring random IDs.

    Later processes see only the files, so duplicate outcomes need not be checked again.
    """

    @property
    def where(self) -> str:
        """The location for messages of failing assertions."""
        return f"{self.fault.value} at {self.step}"


def play_faults(
    run: Callable[[Store], Result],
    make: Callable[[], MemoryStore],
    cases: Iterable[tuple[int, Fault]] | None = None,
) -> Iterator[Outcome[Result]]:
    """Yields the outcome of every fault of every step of `run`, each on its own store.

    `cases` replaces the `distinct_faults` of its steps. Exceptions that are not errors of the
    library are not caught.
    """
    trial = FaultStore(make())
    run(trial)
    seen: set[bytes] = set()
    for at, fault in distinct_faults(trial.trace) if cases is None else cases:
        store = make()
        result = None
        with suppress(SimulatedCrash, DeltaMaintenanceError):
            result = run(FaultStore(store, at=at, fault=fault))
        left = _without_ids(files_of(store))
        yield Outcome(
            step=trial.trace[at], fault=fault, store=store, result=result, is_new=left not in seen
        )
        seen.add(left)


def _without_ids(files: Files) -> bytes:
    """Returns the files as one text, with each random ID replaced by its number of first
    occurrence.
    """
    numbers: dict[bytes, bytes] = {}
    text = b"\n".join(
        b"%s %d %s" % (path.encode(), modified_ms, data)
        for path, (data, modified_ms) in sorted(files.items())
    )
    return _ID.sub(lambda found: numbers.setdefault(found[0], b"%d" % len(numbers)), text)
