"""Leases: one task at a time on each table, among all tasks that share a folder.

Leases avoid duplicate work; they are not needed for safety, because concurrent operations are safe.
A lease is a small file that its holder renews. If the holder dies, the lease expires.

Stores create files atomically, but do not replace or delete them on a condition. Therefore a
process that replaces or deletes a lease first creates a claim, which is named after the lease, and
then reads the lease again. Two processes both have a lease only if one of them pauses for longer
than its lifetime between two requests.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from delta_maintenance import clock
from delta_maintenance.address import Address, digest_of
from delta_maintenance.errors import (
    BusyError,
    CommitUnknownError,
    DeltaMaintenanceError,
    StorageError,
)
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.policies.state_files import StateFile, lease_file
from delta_maintenance.storage.core.base import Put, Store

LIFE = timedelta(minutes=5)
"""The lifetime of a lease that is not renewed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(Record):
    """The holder of the lease of a table, and the earliest time of its expiry."""

    name: str
    """The name of the table in its policy."""
    holder: str
    """The same in every attempt of a task, so that a second attempt takes over the lease of a first
    attempt that died.
    """
    until: Instant
    nonce: str
    """Identifies this write of the file."""

    @property
    def written_at(self) -> datetime:
        """When its holder took or renewed it last."""
        return self.until - LIFE


_LEASE = StateFile(Lease)


class Leases:
    """The leases in one folder of a store."""

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], datetime] = clock.now,
        new_id: clock.NewId = clock.new_id,
        life: timedelta = LIFE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._store = store
        self._now = now
        self._new_id = new_id
        self._life = life

    @contextmanager
    def held(
        self, name: str, *, holder: str, uri: str | None = None, patience: timedelta = timedelta()
    ) -> Iterator[None]:
        """Holds the lease of the table at an address, by default its name, for the duration of the
        block.

        An earlier attempt of the holder has `patience` to end, before its lease is taken over.
        Raises `BusyError`, which names the holder, if another process has the lease. A folder that
        cannot be written, such as one on a full disk, only costs a warning. If a job runs on after
        the block, its watcher must `renew` and `release` the lease.
        """
        path = _file_name(uri or name)
        try:
            self._take(path, name, holder, patience)
        except (StorageError, CommitUnknownError) as error:
            _log.warning("%s is worked on without a lease: %s", name, error)
        ended = threading.Event()
        renewing = threading.Thread(
            target=self._keep, args=(name, uri, holder, ended), name="lease", daemon=True
        )
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            self.release(name, holder=holder, uri=uri)

    def is_held(self, uri: str) -> bool:
        """Whether a task holds the lease of the table at an address."""
        lease = _LEASE.read(self._store, _file_name(uri))
        return lease is not None and self._is_in_force(lease)

    def abandoned(self, uri: str, *, reported_at: datetime | None) -> Lease | None:
        """Returns the lease that a task on the table at an address neither released nor renewed,
        because it was killed. None if the task reported afterwards: the last report is an argument.
        """
        lease = _LEASE.read(self._store, _file_name(uri))
        if lease is None or lease.until > self._now():
            return None
        is_reported = reported_at is not None and reported_at >= lease.written_at
        return None if is_reported else lease

    @property
    def renewal_interval(self) -> timedelta:
        """The time between two renewals."""
        return self._life / 3

    def renew(self, name: str, *, holder: str, uri: str | None = None) -> None:
        """Extends the lease of a table. Does nothing if this holder does not have it."""
        path = _file_name(uri or name)
        try:
            lease = _LEASE.read(self._store, path)
            if lease is not None and lease.holder == holder:
                self._replace(path, lease, self._written(name, holder), holder)
        except DeltaMaintenanceError as error:
            _log.warning("the lease of %s could not be renewed: %s", name, error)

    def release(self, name: str, *, holder: str, uri: str | None = None) -> None:
        """Ends the lease of a table. Does nothing if this holder does not have it."""
        path = _file_name(uri or name)
        try:
            lease = _LEASE.read(self._store, path)
            if lease is not None and lease.holder == holder:
                self._replace(path, lease, None, holder)
        except DeltaMaintenanceError as error:
            _log.warning("a lease could not be released and will expire: %s", error)

    def _take(self, path: str, name: str, holder: str, patience: timedelta = timedelta()) -> None:
        for _ in range(3):
            content = self._written(name, holder)
            if self._store.put_if_absent(path, content) is Put.DONE:
                return
            try:
                lease: Lease | None = _LEASE.load(self._store, path)
            except FileNotFoundError:
                continue
            except ValueError:
                lease = None
            if lease is not None and self._is_in_force(lease):
                if lease.holder != holder:
                    raise BusyError(
                        f"{lease.holder} is working on {name}",
                        remedy=f"wait until it ends; if it has died, its lease expires at "
                        f"{lease.until:%H:%M:%S} UTC",
                    )
                if patience:
                    self._sleep(patience.total_seconds())
                    patience = timedelta()
                    continue
            # Replaces expired and unreadable leases, and the lease of an earlier attempt of this
            # task.
            if self._replace(path, lease, content, holder):
                return
        raise BusyError(f"another process has just started to work on {name}", remedy="try again")

    def _replace(self, path: str, lease: Lease | None, content: bytes | None, holder: str) -> bool:
        """Replaces a lease, or deletes it without content. Returns False if it has changed.

        None as the lease is an unreadable file. Raises `BusyError` while another process does the
        same.
        """
        claim = f"{path}.{digest_of(lease.nonce) if lease is not None else 'unreadable'}"
        self._take(claim, lease.name if lease is not None else path, holder)
        try:
            try:
                is_same = _LEASE.load(self._store, path) == lease
            except FileNotFoundError:
                return False
            except ValueError:
                is_same = lease is None
            if not is_same:
                return False
            if content is None:
                self._store.delete(path)
            else:
                self._store.put(path, content)
            return True
        finally:
            self._store.delete(claim)

    def _is_in_force(self, lease: Lease) -> bool:
        # A lease from a host whose clock is far ahead must not block other hosts until their clocks
        # catch up. The second lifetime allows for clocks that differ less.
        now = self._now()
        return now < lease.until <= now + 2 * self._life

    def _keep(self, name: str, uri: str | None, holder: str, ended: threading.Event) -> None:
        while not ended.wait(self.renewal_interval.total_seconds()):
            self.renew(name, holder=holder, uri=uri)

    def _written(self, name: str, holder: str) -> bytes:
        lease = Lease(
            name=name, holder=holder, until=self._now() + self._life, nonce=self._new_id()
        )
        return _LEASE.to_bytes(lease)


def _file_name(uri: str) -> str:
    # A lease is taken where the table is, so links of local folders can be resolved. Addresses that
    # only a store knows to be one place, such as an access point of S3, have leases of their own:
    # the ID of the table would connect them, but copies of a folder have the same ID, and would
    # wait for each other.
    address = Address.parse(uri)
    if address.is_local:
        uri = os.path.realpath(address.path)
    return lease_file(uri)
