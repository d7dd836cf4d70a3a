"""Leases: one run at a time changes a table, in the whole Dagster instance.

A lease is the only slot of a pool of the instance, claimed by the run for the time of its changes.
The holder renews an expiry time in the instance's storage. A slot whose run has ended, or whose
expiry has passed because the process or its machine is lost, is taken over by the next run.

Leases save work but are not needed for safety: operations of concurrent runs are safe.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import filelock
from dagster._core.storage.event_log import ConsolidatedSqliteEventLogStorage, SqliteEventLogStorage

from delta_maintenance import clock
from delta_maintenance.errors import BusyError

LIFE = timedelta(minutes=5)
"""The lifetime of a lease that is not renewed."""

_SQLITE = (SqliteEventLogStorage, ConsolidatedSqliteEventLogStorage)
_CLAIM_TIMEOUT = 60
"""Seconds that a claim waits for the claims of other processes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class InstanceLease:
    """The lease of one table, for one step of a run. A retry of the step takes it over."""

    instance: dg.DagsterInstance
    pool: str
    run_id: str
    now: clock.Clock = clock.now
    life: timedelta = LIFE

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Holds the lease for the duration of the block.

        Raises `BusyError`, which names the run that holds it. An instance without pools has no
        leases.
        """
        if not self.instance.event_log_storage.supports_global_concurrency_limits:
            yield
            return
        limit_to_one(self.instance, self.pool)
        if not self._claim_slot():
            self._free_the_dead()
            if not self._claim_slot():
                raise self._busy()
        ended = threading.Event()
        self._renew(self.run_id)
        renewing = threading.Thread(
            target=self._keep_renewing, args=(ended,), name="lease", daemon=True
        )
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            self._free(self.run_id, self._claim)

    @property
    def _claim(self) -> str:
        """The name of the claim, instead of that of a step: one step holds leases of many
        tables.
        """
        return f"lease of {self.pool}"

    @property
    def _expiry_key(self) -> str:
        return f"delta_maintenance/lease/{self.pool}"

    def _claim_slot(self) -> bool:
        storage = self.instance.event_log_storage
        try:
            with self._claiming():
                if storage.claim_concurrency_slot(self.pool, self.run_id, self._claim).is_claimed:
                    return True
        except filelock.Timeout:
            return False
        # This run would get the slot from the queue even if it has ended by then.
        self._free(self.run_id, self._claim)
        return False

    def _claiming(self) -> AbstractContextManager[object]:
        """Admits one process at a time if the database does not lock slots."""
        if not isinstance(self.instance.event_log_storage, _SQLITE):
            return nullcontext()
        # SQLite does not lock a slot between its read and its update, so two claims of one slot can
        # both succeed. All processes of such an instance are on one machine.
        path = Path(self.instance.root_directory) / "delta-maintenance.lock"
        return filelock.FileLock(path, timeout=_CLAIM_TIMEOUT)

    def _free_the_dead(self) -> None:
        """Frees the slots and queue entries of runs that no longer use them."""
        info = self.instance.event_log_storage.get_concurrency_info(self.pool)
        for slot in info.claimed_slots:
            is_lease = slot.step_key == self._claim
            if self._has_ended(slot.run_id) or (is_lease and self._has_expired(slot.run_id)):
                self._free(slot.run_id, slot.step_key)
        for step in info.pending_steps:
            if self._has_ended(step.run_id):
                self._free(step.run_id, step.step_key)

    def _has_ended(self, run_id: str) -> bool:
        run = self.instance.get_run_by_id(run_id)
        return run is None or run.is_finished

    def _has_expired(self, run_id: str) -> bool:
        cursors = self.instance.run_storage.get_cursor_values({self._expiry_key})
        try:
            lease = json.loads(cursors.get(self._expiry_key, ""))
            if lease["run"] == run_id:
                return datetime.fromisoformat(lease["until"]) < self.now()
        except (ValueError, KeyError, TypeError):
            pass
        # A run that is killed between its claim and its first renewal has no expiry time, and would
        # keep the slot if Dagster never notices its end. If it lives, it renews the lease itself.
        self._renew(run_id)
        return False

    def _renew(self, run_id: str) -> None:
        lease = {"run": run_id, "until": (self.now() + self.life).isoformat()}
        self.instance.run_storage.set_cursor_values({self._expiry_key: json.dumps(lease)})

    def _keep_renewing(self, ended: threading.Event) -> None:
        while not ended.wait(self.life.total_seconds() / 3):
            try:
                self._renew(self.run_id)
            # Databases raise errors of any class; the next renewal may succeed.
            except Exception as error:
                _log.warning("the lease of %s could not be renewed: %s", self.pool, error)

    def _free(self, run_id: str, claim: str) -> None:
        self.instance.event_log_storage.free_concurrency_slot_for_step(run_id, claim)

    def _busy(self) -> BusyError:
        info = self.instance.event_log_storage.get_concurrency_info(self.pool)
        holder = next((slot.run_id for slot in info.claimed_slots), "another run")
        return BusyError(
            f"run {holder} is working on the table",
            remedy="wait until it ends; if its process is lost, its lease expires within "
            f"{self.life.total_seconds() / 60:g} minutes",
        )


def limit_to_one(instance: dg.DagsterInstance, pool: str) -> None:
    """Sets the limit of a pool to one if it has no limit, or a limit of zero."""
    if _is_limited(instance, pool):
        return
    try:
        instance.event_log_storage.set_concurrency_slots(pool, 1)
    # Databases raise errors of any class if another run has just inserted the pool.
    except Exception:
        if not _is_limited(instance, pool):
            raise


def _is_limited(instance: dg.DagsterInstance, pool: str) -> bool:
    info = instance.event_log_storage.get_concurrency_info(pool)
    return not info.using_default_limit and info.slot_count > 0
