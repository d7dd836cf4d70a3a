"""Opens the store for the address of a table, with a client of its own or a shared one.

Backends are imported on demand, so that opening a table loads only its own backend.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from delta_maintenance.address import Access, Address, StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.rest.failure import PAUSES
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.storage.options import options_over, parse_options, split_reference

if TYPE_CHECKING:
    from delta_maintenance.catalogs.reference import CatalogReference
    from delta_maintenance.storage.core.vended import VendedOptions


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
    `storage.fsspec`. Options of a catalog (`catalogs.reference`) make the store obtain and
    renew the credentials that the catalog vends. `InvalidRequestError` for an address or option
    that is not understood.
    """
    address = uri if isinstance(uri, Address) else Address.parse(uri)
    reference, store_options = split_reference(address, storage_options, os.environ)
    client = None
    if clients is not None:
        client = clients.of(address, storage_options)
    elif (vended := _vended_options(address, store_options, reference)) is not None:
        client = _new_client(
            address, parse_options(address, store_options, os.environ), vended=vended
        )
    match address.kind:
        case StoreKind.LOCAL:
            _no_options(store_options)
            return LocalStore(address.path)
        case StoreKind.MEMORY:
            from delta_maintenance.storage.memory import MemoryStore

            _no_options(store_options)
            return MemoryStore(address)
        case StoreKind.S3:
            from delta_maintenance.storage.s3.store import S3Store

            return S3Store(address, store_options, client=client)
        case StoreKind.GCS:
            from delta_maintenance.storage.gcs.store import GCSStore

            return GCSStore(address, store_options, client=client)
        case StoreKind.AZURE:
            from delta_maintenance.storage.azure.store import AzureStore

            return AzureStore(address, store_options, client=client)
        case StoreKind.HDFS:
            from delta_maintenance.storage.hdfs.store import HdfsStore

            return HdfsStore(address, store_options, client=client)
        case StoreKind.OTHER:
            from delta_maintenance.storage.fsspec import FsspecStore

            return FsspecStore(address, store_options)


def expect_access(
    root: Address, storage_options: Mapping[str, str] | None, access: Access, *, below: str
) -> None:
    """States what the next requests to a table's store are for, if a catalog vends its credentials.

    To write, the credentials for the path `below` the root are requested at once. Raises
    `CatalogError` if the catalog denies them, and `RefusedError` if the options only permit to
    read.
    """
    reference, store_options = split_reference(root, storage_options, os.environ)
    vended = _vended_options(root, store_options, reference)
    if vended is not None:
        vended.expect(access, root.join(below).path)


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
        reference, store_options = split_reference(address, storage_options, os.environ)
        options = parse_options(address, store_options, os.environ)
        if options is None:
            return None
        # A client of Google or Azure is bound to its bucket or container.
        bound = address.kind in (StoreKind.GCS, StoreKind.AZURE)
        authority = address.authority.partition("@")[0] if bound else ""
        vended = _vended_options(address, store_options, reference)
        # Vended credentials are those of one table.
        key = (options, authority, (reference, address) if vended is not None else None)
        with self._lock:
            client = self._clients.get(key)
            if client is None:
                client = _new_client(
                    address, options, vended=vended, pauses=self._pauses, read_timeout=_READ_TIMEOUT
                )
                self._clients[key] = client
            return client


def _new_client(
    address: Address,
    options: Any,
    *,
    vended: Any,
    pauses: Sequence[float] = PAUSES,
    read_timeout: float = 60,
) -> Any:
    match address.kind:
        case StoreKind.S3:
            from delta_maintenance.storage.s3.client import S3Client

            return S3Client(options, read_timeout=read_timeout, pauses=pauses, vended=vended)
        case StoreKind.GCS:
            from delta_maintenance.storage.gcs.client import GCSClient

            return GCSClient(options, address.authority, pauses=pauses, vended=vended)
        case StoreKind.AZURE:
            from delta_maintenance.storage.azure.client import AzureClient

            container = address.authority.partition("@")[0]
            return AzureClient(options, container, pauses=pauses, vended=vended)
        case _:
            from delta_maintenance.storage.hdfs.store import open_client

            return open_client(options, pauses=pauses)


def _vended_options(
    address: Address, store_options: Mapping[str, str], reference: CatalogReference | None
) -> VendedOptions[Any] | None:
    """Returns the options of a store that takes its credentials from a catalog; else None."""
    if reference is None or not reference.vends:
        return None
    # Imported here because most tables belong to no catalog.
    from delta_maintenance.storage.core.vended import VendedOptions

    def merge(vended: Mapping[str, str]) -> Any:
        return parse_options(address, options_over(vended, store_options), os.environ)

    match address.kind:
        case StoreKind.S3 | StoreKind.GCS | StoreKind.AZURE:
            options: Any = parse_options(address, store_options)
            # What a user gives takes precedence.
            return None if options.has_credentials else VendedOptions.of(reference, address, merge)
        case _:
            return None


def _no_options(storage_options: Mapping[str, str] | None) -> None:
    if storage_options:
        raise InvalidRequestError(
            f"this store has no storage option {next(iter(storage_options))!r}",
            remedy="omit the storage options",
        )


_READ_TIMEOUT = 20
"""In seconds. One unresponsive store must not delay the tables of the others for long."""
