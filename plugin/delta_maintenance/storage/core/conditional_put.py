"""Conditional puts: create an object once, and determine which writer created it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from delta_maintenance import clock
from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError, RefusedError
from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently, storage_error
from delta_maintenance.storage.core.base import Put


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """The creator and the size of an existing object."""

    put_id: str | None
    """The ID of the call that created it; None if another writer did or the store keeps no ID."""
    size: int
    """Bytes."""


class ConditionalPut(ABC):
    """Puts objects into one bucket if their keys are free.

    Every object carries the ID of the call that created it. If the answer to a put is lost, the ID
    of the existing object decides the outcome.

    A server that ignores the condition would let two writers commit the same version. Unless the
    server is known to honour it, each instance tests it once before its first put, with a probe
    object that is deleted afterwards.
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
        cannot be determined, `StorageError` if nothing was written.
        """
        self._require_conditions(key)
        put_id = self._new_id()
        try:
            return self._put(key, source, size, put_id)
        finally:
            self.discard(key, put_id)

    def replace(self, key: str, source: BinaryIO, size: int) -> None:
        """Writes one object from the seekable `source`, in parts, and replaces an existing one.

        `RequestFailure` if that fails.
        """

        def upload() -> None:
            source.seek(0)
            self.stage(key, source, size, self._new_id(), replaces=True)()

        patiently(upload, self._sleep)

    def _put(self, key: str, source: BinaryIO, size: int, put_id: str) -> Put:
        ambiguity: str | None = None
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
            # A failed precondition is as ambiguous as a lost answer: the HTTP client may have
            # repeated the request by itself, and the repetition then finds the object of the first
            # attempt.
            if cause.precondition_failed or cause.is_unsure:
                try:
                    return self._outcome_of(key, source, size, put_id)
                except RequestFailure as failure:
                    ambiguity = f"{cause}; reading it back: {failure}"
            if cause.precondition_failed or not (cause.is_unsure or cause.conflict):
                # The existing object has disappeared. It may be a version that others have read and
                # that log cleanup has deleted since: a repeated put could restore it.
                break
            if pause is not None:
                self._sleep(pause)
        if ambiguity is not None:
            raise CommitUnknownError(
                f"the outcome of the write is unknown ({ambiguity})",
                remedy="check whether the file exists before running again",
            ) from cause
        raise self._error(cause) from cause

    @abstractmethod
    def stage(
        self, key: str, source: BinaryIO, size: int, put_id: str, *, replaces: bool = False
    ) -> Callable[[], object]:
        """Prepares the put. Returns the request that publishes the object, without sending it.

        The request has no condition if the object `replaces` an existing one.
        """

    @abstractmethod
    def creation(self, key: str, put_id: str) -> Creation:
        """Describes the creator of the existing object for the call `put_id`.

        `RequestFailure` if the object does not exist.
        """

    @abstractmethod
    def part(self, key: str, first: int, count: int) -> bytes:
        """Reads `count` bytes of the existing object, starting at `first`."""

    @abstractmethod
    def put_probe(self, key: str) -> None:
        """Creates a small object if its key is free. May be repeated."""

    @abstractmethod
    def delete_probe(self, key: str) -> None:
        """Deletes the probe object."""

    def discard(self, key: str, put_id: str) -> None:  # noqa: B027  most stores stage nothing
        """Removes files that a call has staged and not published, as far as possible."""

    @abstractmethod
    def is_trusted(self, key: str) -> bool:
        """Whether the server is known to honour the condition, so that no probe is needed.

        `key` is the key of the next put. `RefusedError` if the server is known to ignore the
        condition.
        """

    def _outcome_of(self, key: str, source: BinaryIO, size: int, put_id: str) -> Put:
        """Compares the existing object with this call. `RequestFailure` if it is not visible."""
        creation = self.creation(key, put_id)
        if creation.put_id is not None:
            return Put.DONE if creation.put_id == put_id else Put.EXISTS
        # Created by another writer, or by this call on a server that keeps no metadata.
        if creation.size != size:
            return Put.EXISTS
        source.seek(0)
        for offset in range(0, size, self.part_size):
            expected = source.read(self.part_size)
            if self.part(key, offset, len(expected)) != expected:
                return Put.EXISTS
        return Put.DONE

    def _require_conditions(self, key: str) -> None:
        """Raises `RefusedError` unless the server honours the condition."""
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
            raise _no_conditions("it overwrote an existing object")
        finally:
            # The permission to delete may be missing. In that case one small hidden object remains.
            with suppress(RequestFailure):
                self.delete_probe(probe)

    def _error(self, failure: RequestFailure) -> DeltaMaintenanceError:
        if failure.is_unsupported:
            return _no_conditions(str(failure))
        return storage_error(failure, permission=self.permission)


def _no_conditions(evidence: str) -> RefusedError:
    return RefusedError(
        f"the store has no conditional put ({evidence}), so a commit there could overwrite "
        "another one",
        remedy="use a store and a client that honour it, or commit through Spark",
    )
