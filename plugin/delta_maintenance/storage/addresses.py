"""Opens the store for the address of a table, with a client of its own or a shared one.

Backends are imported on demand, so that opening a table loads only its own backend.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.rest.failure import PAUSES
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.storage.options import parse_options


def open_store(
    uri: str | os.PathLike[str] | Address,
    storage_options: Mapping[str, str] | None = None,
    *,
    clients: SharedClients | None = None,
) -> Store:
    """Opens the store for a table's address, with its own connection or one from `clients`.

    `Address.parse` documents the addresses. `storage_options` configure stores behind a network:
    see `S3Options`, `GCSOptions`, `AzureOptions`, `NativeOptions` for `hdfs:` and `WebHdfsOptions`.
    Stores of all other fsspec schemes are read-only; for their options see
    `storage.fsspec.options`. `InvalidRequestError` for an address or option that is not understood.
    """
    address = uri if isinstance(uri, Address) else Address.parse(uri)
    client = clients.of(address, storage_options) if clients is not None else None
    match address.kind:
        case StoreKind.LOCAL:
            _no_options(storage_options)
            return LocalStore(address.path)
        case StoreKind.MEMORY:
            from delta_maintenance.storage.memory.store import MemoryStore

            _no_options(storage_options)
            return MemoryStore(address)
        case StoreKind.S3:
            from delta_maintenance.storage.s3.store import S3Store

            return S3Store(address, storage_options, client=client)
        case StoreKind.GCS:
            from delta_maintenance.storage.gcs.store import GCSStore

            return GCSStore(address, storage_options, client=client)
        case StoreKind.AZURE:
            from delta_maintenance.storage.azure.store import AzureStore

            return AzureStore(address, storage_options, client=client)
        case StoreKind.HDFS:
            from delta_maintenance.storage.hdfs.store import HdfsStore

            return HdfsStore(address, storage_options, client=client)
        case StoreKind.OTHER:
            from delta_maintenance.storage.fsspec.store import FsspecStore

            return FsspecStore(address, storage_options)


class SharedClients:
    """Gives stores with the same options the same client, for watchers of hundreds of tables.

    A client of an object store holds connections, credentials and an API description, several
    megabytes in all. It lives as long as a store that uses it. `pauses` are the seconds to wait
    before each further attempt of a request; a caller that polls needs none. Thread-safe.
    """

    def __init__(self, *, pauses: Sequence[float] = PAUSES) -> None:
        self._pauses = pauses
        self._clients: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, address: Address, storage_options: Mapping[str, str] | None) -> Any:
        """Returns the client for the store at an address, or None if it has none.

        `InvalidRequestError` for options that the store does not have.
        """
        options = parse_options(address, storage_options, os.environ)
        if options is None:
            return None
        # A client of Google or Azure is bound to its bucket or container.
        bound = address.kind in (StoreKind.GCS, StoreKind.AZURE)
        authority = address.authority.partition("@")[0] if bound else ""
        with self._lock:
            client = self._clients.get((options, authority))
            if client is None:
                client = self._new(address.kind, options, authority)
                self._clients[options, authority] = client
            return client

    def _new(self, kind: StoreKind, options: Any, authority: str) -> Any:
        match kind:
            case StoreKind.S3:
                from delta_maintenance.storage.s3.client import S3Client

                return S3Client(options, read_timeout=_READ_TIMEOUT, pauses=self._pauses)
            case StoreKind.GCS:
                from delta_maintenance.storage.gcs.client import GCSClient

                return GCSClient(options, authority, pauses=self._pauses)
            case StoreKind.AZURE:
                from delta_maintenance.storage.azure.client import AzureClient

                return AzureClient(options, authority, pauses=self._pauses)
            case _:
                from delta_maintenance.storage.hdfs.store import open_client

                return open_client(options, pauses=self._pauses)


def _no_options(storage_options: Mapping[str, str] | None) -> None:
    if storage_options:
        raise InvalidRequestError(
            f"this store has no storage option {next(iter(storage_options))!r}",
            remedy="omit the storage options",
        )


_READ_TIMEOUT = 20
"""In seconds. One unresponsive store must not delay the tables of the others for long."""
