"""Delivering rows to the ledger: kept in the state folder until they are in the table.

The rows of a run are written to the state folder first, appended to the ledger, and then removed
from the folder. A process that ends in between leaves them there; the next run delivers them, and
the ledger recognises rows that it has. A ledger that cannot be written never fails a run, and one
whose store does not answer is waited for once: for a while, rows are only kept.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from threading import RLock
from typing import Literal, Self

import pyarrow as pa

from delta_maintenance import clock
from delta_maintenance.address import lie_within_each_other, place_of
from delta_maintenance.errors import (
    CatalogUnavailableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    StorageError,
    failure_of,
)
from delta_maintenance.ledger.rows import SCHEMA, Origin, rows_of
from delta_maintenance.ledger.table import Delivery, LedgerTable
from delta_maintenance.operations.core.record import Record
from delta_maintenance.policies.models import RunResult
from delta_maintenance.policies.state_files import (
    LEDGER_FOLDER,
    UNREACHABLE_FILE,
    StateFile,
    delivery_file,
)
from delta_maintenance.storage import Store, open_store

_WHILE = timedelta(minutes=5)
_LONG = 3.0
"""The seconds after which a failure is that of a store that does not answer."""
_SILENT = (StorageError, CatalogUnavailableError)
_failed_at: dict[str, int] = {}
"""When the store of a ledger failed in this process, in milliseconds, by the ledger's address."""
_recording = RLock()
"""Held while this process writes to a ledger: others would wait for the same store, or conflict."""


def is_unreachable(address: str | None, state: Store | None) -> bool:
    """Whether the store of a ledger failed within the last minutes, in any process that shares the
    state folder.
    """
    if address is None:
        return False
    at = _failed_at.get(address, 0)
    if not at and state is not None:
        with suppress(DeltaMaintenanceError):
            status = state.stat(UNREACHABLE_FILE)
            at = 0 if status is None else status.modified_ms
    return clock.epoch_millis(clock.now()) - at < _WHILE // timedelta(milliseconds=1)


def _remember_failure(
    address: str | None, state: Store | None, error: Exception, *, began: float
) -> None:
    # A failure that takes no time holds up nobody, and may be over at once.
    is_slow = time.monotonic() - began > _LONG
    if address is not None and is_slow and isinstance(error, _SILENT):
        _failed_at[address] = clock.epoch_millis(clock.now())
        if state is not None:
            with suppress(DeltaMaintenanceError):
                state.put(UNREACHABLE_FILE, str(error).encode())


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Records the runs of a process in a ledger."""

    open_ledger: Callable[[], LedgerTable]
    state: Store | None
    """The state folder; without it, rows that cannot be delivered are lost."""
    address: str | None = None
    """The address of the ledger. Its own maintenance is recorded only if it was not idle, because
    each row makes a commit to maintain."""
    has_caught_up: bool = False
    """Whether the rows that earlier processes left have been delivered."""
    _said: set[str] = field(default_factory=set)

    @classmethod
    def at(
        cls,
        address: str,
        storage_options: Callable[[], Mapping[str, str] | None],
        *,
        state: Store | None,
    ) -> Self:
        """Returns a recorder for the ledger at an address, which is opened on first use."""
        return cls(
            open_ledger=cache(lambda: LedgerTable(open_store(address, storage_options()))),
            state=state,
            address=address,
        )

    def record(self, result: RunResult, origin: Origin) -> list[str]:
        """Delivers the rows of a run, and those that earlier runs left. Returns warnings.

        Raises nothing.
        """
        try:
            rows = rows_of(self._worth_a_row(result), origin)
            if rows.num_rows:
                self._require_folder_of_its_own(result.uri)
        except Exception as error:
            return [_warning(failure_of(error, where="the ledger"), kept=False)]
        return self.record_rows(rows, origin)

    def record_rows(self, rows: pa.Table, origin: Origin) -> list[str]:
        """Delivers rows, and those that earlier runs left. Returns warnings; raises nothing."""
        if not rows.num_rows:
            return []
        try:
            with _recording:
                warnings = [*self._deliver(origin.run_id, rows)]
        except Exception as error:
            warnings = [_warning(failure_of(error, where="the ledger"), kept=False)]
        # The same for each table of a run is said once.
        news = [warning for warning in warnings if warning not in self._said]
        self._said.update(news)
        return news

    def _require_folder_of_its_own(self, table: str) -> None:
        if self.address is not None and lie_within_each_other(self.address, table):
            raise InvalidRequestError(
                f"the ledger {self.address} and the table lie within each other, so that a vacuum "
                "would find the files of both",
                table=table,
                remedy="give the ledger a folder of its own",
            )

    def _worth_a_row(self, result: RunResult) -> RunResult:
        if self.address is None or place_of(result.uri) != place_of(self.address):
            return result
        worth = (outcome for outcome in result.outcomes if outcome.status != "nothing-to-do")
        return replace(result, outcomes=tuple(worth))

    def _deliver(self, run_id: str, rows: pa.Table) -> Iterator[str]:
        is_kept = False
        if is_unreachable(self.address, self.state):
            assert self.address is not None
            is_news = self.address not in _failed_at
            _failed_at.setdefault(self.address, clock.epoch_millis(clock.now()))
            is_kept = self._keep(Delivery(run_id=run_id, rows=rows, since_version=None))
            if is_news or not (is_kept or self.state is None):
                yield _warning(StorageError("its store failed a short while ago"), kept=is_kept)
            return
        began = time.monotonic()
        try:
            ledger = self.open_ledger()
            delivery = Delivery(run_id=run_id, rows=rows, since_version=ledger.version())
        except Exception as error:
            _remember_failure(self.address, self.state, error, began=began)
            is_kept = self._keep(Delivery(run_id=run_id, rows=rows, since_version=None))
            yield _warning(failure_of(error, where="the ledger"), kept=is_kept)
            return
        is_kept = self._keep(delivery)
        try:
            ledger.append(delivery)
        except Exception as error:
            _remember_failure(self.address, self.state, error, began=began)
            yield _warning(failure_of(error, where="the ledger"), kept=is_kept)
            return
        self._forget(run_id)
        if not self.has_caught_up:
            # Once for each process: the next one delivers what is left behind meanwhile.
            self.has_caught_up = True
            try:
                yield from self._catch_up(ledger, run_id)
            except Exception as error:
                yield _warning(failure_of(error, where="the ledger"), kept=True)

    def _catch_up(self, ledger: LedgerTable, own_run: str) -> Iterator[str]:
        """Delivers what earlier runs left behind."""
        if self.state is None:
            return
        # Read before the files: another process writes the version to a file before it appends the
        # rows, so rows in a file without a version are in none up to this one.
        since = ledger.version()
        for status in [*self.state.list_from(LEDGER_FOLDER)]:
            name = status.path.rpartition("/")[2]
            if not name.endswith(".json") or name == f"{own_run}.json":
                continue
            try:
                delivery = _read(self.state, status.path)
            except FileNotFoundError:
                continue  # Another process has delivered it.
            except DeltaMaintenanceError as error:
                yield _warning(error.locate(file=status.path), kept=True)
                continue
            try:
                if delivery.since_version is None:
                    delivery = replace(delivery, since_version=since)
                    # From now on, a process that ends may have appended the rows.
                    self.state.put(status.path, _document(delivery))
                ledger.append(delivery)
                self._forget(delivery.run_id)
            except StorageError:
                raise
            except Exception as error:
                # Rows that cannot be appended hold up no others.
                yield _warning(failure_of(error, where="the ledger"), kept=True)

    def _keep(self, delivery: Delivery) -> bool:
        if self.state is None:
            return False
        try:
            self.state.put_if_absent(delivery_file(delivery.run_id), _document(delivery))
        except DeltaMaintenanceError:
            return False
        return True

    def _forget(self, run_id: str) -> None:
        if self.state is None:
            return
        # A file that stays is delivered again, and recognised.
        with suppress(DeltaMaintenanceError):
            self.state.delete(delivery_file(run_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document(Record):
    """A delivery in the state folder."""

    form: Literal[1] = 1
    """The version of this format."""
    run_id: str
    since_version: int | None
    rows: str
    """A stream of Arrow in Base64."""


_DELIVERY = StateFile(_Document, max_bytes=16 << 20)


def _document(delivery: Delivery) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_table(delivery.rows)
    rows = base64.b64encode(sink.getvalue()).decode()
    return _DELIVERY.to_bytes(
        _Document(run_id=delivery.run_id, since_version=delivery.since_version, rows=rows)
    )


def _read(state: Store, path: str) -> Delivery:
    try:
        document = _DELIVERY.load(state, path)
        with pa.ipc.open_stream(base64.b64decode(document.rows)) as stream:
            rows = stream.read_all()
    except (ValueError, pa.ArrowException):
        raise InvalidRequestError(
            "rows for the ledger are damaged", remedy="delete the file; its rows are lost"
        ) from None
    return Delivery(run_id=document.run_id, rows=rows, since_version=document.since_version)


def _warning(error: DeltaMaintenanceError, *, kept: bool) -> str:
    consequence = (
        "the next run delivers its rows"
        if kept
        else "its rows are lost, because there is no state folder that keeps them"
    )
    if error.retryable and isinstance(error, _SILENT):
        consequence += (
            f"; if it took long, it is not tried again for {_WHILE.seconds // 60} minutes"
        )
    return f"the ledger was not written: {error}; {consequence}"
