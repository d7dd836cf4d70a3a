"""Creating an object exactly once, and finding out which writer created it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from delta_maintenance import clock
from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError, RefusedError
from delta_maintenance.storage.core.base import Put
from delta_maintenance.storage.core.request_failure import PAUSES, RequestFailure, storage_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """The metadata of an object about the call that created it."""

    put_id: str | None
    """The ID that the call gave it; None if another writer created it or the store keeps no ID."""
    size: int
    """Bytes."""


class ConditionalPut(ABC):
    """Puts objects into one bucket if their keys are free.

    Every object carries an id of the one call that made it, so that an answer lost on the way is
    settled by looking whose object is there. A server not known to honour the condition first
    shows, on an object of its own that is deleted again, that it does: one that ignores it would
    let two writers commit the same version. It shows that once to each instance.
    """

    permission: str
    """The permissions that a put needs, for messages."""

    def __init__(
        self,
        *,
        sleep: Callable[[float], None],
        new_id: clock.NewId,
        multipart_size: int,
        part_size: int,
    ) -> None:
        self.multipart_size = multipart_size
        self.part_size = part_size
        self._sleep = sleep
        self._new_id = new_id
        self._probing = threading.Lock()
        self._honours_conditions = False

    def put(self, key: str, source: BinaryIO, size: int) -> Put:
        """Creates one object of `size` bytes from the seekable `source`.

        `RefusedError` if the server has no conditional put, `CommitUnknownError` if the outcome
        cannot be found out, `StorageError` if nothing was written.
        """
        self._require_conditions(key)
        put_id = self._new_id()
        try:
            return self._put(key, source, size, put_id)
        finally:
            self.discard(key, put_id)

    def _put(self, key: str, source: BinaryIO, size: int, put_id: str) -> Put:
        doubt: str | None = None
        for pause in (*PAUSES, None):
            source.seek(0)
            try:
                publish = self.stage(key, source, size, put_id)
            except RequestFailure as failure:
                cause = failure
                if not cause.precondition_failed:
                    break
            else:
                try:
                    publish()
                    return Put.DONE
                except RequestFailure as failure:
                    cause = failure
            # A refuted condition is a doubt like no answer at all: after a lost answer the HTTP
            # client may send the request again by itself, and then meets the object of the first.
            if cause.precondition_failed or cause.unanswered:
                try:
                    return self._whose(key, source, size, put_id)
                except RequestFailure as failure:
                    doubt = f"{cause}; looking for it: {failure}"
            if cause.precondition_failed or not (cause.unanswered or cause.conflict):
                # An object that was there and cannot be seen now may be a version that others have
                # read and cleaned up: sending it again could bring it back.
                break
            if pause is not None:
                self._sleep(pause)
        if doubt is not None:
            raise CommitUnknownError(
                f"whether the object was written could not be found out ({doubt})",
                remedy="look whether it is there before running again",
            ) from cause
        raise self._error(cause) from cause

    @abstractmethod
    def stage(self, key: str, source: BinaryIO, size: int, put_id: str) -> Callable[[], object]:
        """Makes everything ready. Returns the one request that publishes the object, unsent."""

    @abstractmethod
    def creation(self, key: str, put_id: str) -> Creation:
        """Who made the object there; `put_id` is that of the call that asks.

        `RequestFailure` if there is none.
        """

    @abstractmethod
    def part(self, key: str, first: int, count: int) -> bytes:
        """`count` bytes of the object there, from `first` on."""

    @abstractmethod
    def put_probe(self, key: str) -> None:
        """Creates a small object if its key is free. May be repeated."""

    @abstractmethod
    def delete_probe(self, key: str) -> None:
        """Deletes it again."""

    def discard(self, key: str, put_id: str) -> None:  # noqa: B027  most stage nothing that stays
        """Removes files that a call has staged and not published, as far as that is possible."""

    @abstractmethod
    def is_trusted(self, key: str) -> bool:
        """Whether the server is known to honour the condition, so that it need not be shown.

        `key` is one that is to be put.

        `RefusedError` if it is known not to.
        """

    def _whose(self, key: str, source: BinaryIO, size: int, put_id: str) -> Put:
        """Whether this call created the existing object; `RequestFailure` if none is visible."""
        found = self.creation(key, put_id)
        if found.put_id is not None:
            return Put.DONE if found.put_id == put_id else Put.EXISTS
        # Another writer's, or ours on a server that keeps no metadata.
        if found.size != size:
            return Put.EXISTS
        source.seek(0)
        for first in range(0, size, self.part_size):
            mine = source.read(self.part_size)
            if self.part(key, first, len(mine)) != mine:
                return Put.EXISTS
        return Put.DONE

    def _require_conditions(self, key: str) -> None:
        """`RefusedError` unless the server is known to honour the condition."""
        with self._probing:
            if self._honours_conditions:
                return
            try:
                if not self.is_trusted(key):
                    self._probe(key)
            except RequestFailure as failure:
                raise self._error(failure) from failure
            self._honours_conditions = True

    def _probe(self, key: str) -> None:
        directory, slash, _ = key.rpartition("/")
        probe = f"{directory}{slash}.{self._new_id()}.probe"
        try:
            for _ in range(2):
                self.put_probe(probe)
        except RequestFailure as failure:
            if not failure.precondition_failed:
                raise
        else:
            raise _no_conditions("it overwrites an object that must not be there")
        finally:
            # Not every writer may delete. In that case one small hidden object remains.
            with suppress(RequestFailure):
                self.delete_probe(probe)

    def _error(self, failure: RequestFailure) -> DeltaMaintenanceError:
        if failure.unsupported:
            return _no_conditions(str(failure))
        return storage_error(failure, permission=self.permission)


def _no_conditions(evidence: str) -> RefusedError:
    return RefusedError(
        f"the store has no conditional put ({evidence}), so a commit there could overwrite "
        "another one",
        remedy="use a store and a client that honour it, or commit through Spark",
    )
