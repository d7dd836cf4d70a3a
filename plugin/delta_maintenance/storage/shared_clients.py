"""Clients that the stores of many tables share, for watchers of hundreds of tables.

A client of an object store holds connections, credentials and an API description, several megabytes
in all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from delta_maintenance.address import Address
from delta_maintenance.storage.azure.options import AzureAddress, AzureOptions
from delta_maintenance.storage.core.request_failure import PAUSES
from delta_maintenance.storage.gcs.options import GCSOptions
from delta_maintenance.storage.hdfs.options import NativeOptions, WebHdfsOptions
from delta_maintenance.storage.options import StoreOptions, parse_options
from delta_maintenance.storage.s3.options import S3Options


class SharedClients:
    """Gives stores with the same options the same client. Thread-safe.

    A client lives as long as a store that uses it. `pauses` are the seconds to wait before each
    further attempt of a request; a caller that polls needs none.
    """

    def __init__(self, *, pauses: Sequence[float] = PAUSES) -> None:
        self._pauses = pauses
        self._clients: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, address: str, storage_options: Mapping[str, str] | None) -> Any:
        """Returns the client for the store at an address.

        `InvalidRequestError` for options that the store does not have.
        """
        where = Address.parse(address)
        options = parse_options(where, storage_options, os.environ)
        unbound = isinstance(options, S3Options | NativeOptions | WebHdfsOptions)
        place = "" if unbound else _place(where, options)
        with self._lock:
            client = self._clients.get((options, place))
            if client is None:
                client = self._clients[options, place] = self._new(options, place)
            return client

    def _new(self, options: StoreOptions | None, place: str) -> Any:
        # Imported on demand, so that a table loads only its own backend.
        match options:
            case S3Options():
                from delta_maintenance.storage.s3.client import S3Client

                return S3Client(options, read_timeout=_READ_TIMEOUT, pauses=self._pauses)
            case GCSOptions():
                from delta_maintenance.storage.gcs.client import GCSClient

                return GCSClient(options, place, pauses=self._pauses)
            case NativeOptions() | WebHdfsOptions():
                from delta_maintenance.storage.hdfs.store import open_client

                return open_client(options, pauses=self._pauses)
            case AzureOptions():
                from delta_maintenance.storage.azure.client import AzureClient

                return AzureClient(options, place, pauses=self._pauses)
            case _:
                raise AssertionError("no other store has a client")


def _place(address: Address, options: StoreOptions | None) -> str:
    """Returns the bucket or the container, to which a client of Google or Azure is bound."""
    if isinstance(options, AzureOptions):
        return AzureAddress.of(address).container
    return address.authority


_READ_TIMEOUT = 20
"""In seconds. One unresponsive store must not delay the tables of the others for long."""
