"""Opens the store for the address of a table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.local.store import LocalStore

# Backends are imported on demand, so that opening a table loads only its own backend.
if TYPE_CHECKING:
    from delta_maintenance.storage.shared_clients import SharedClients


def open_store(
    uri: str | os.PathLike[str],
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
    address = Address.parse(uri)
    kind = address.kind
    if kind in (StoreKind.LOCAL, StoreKind.MEMORY):
        _no_options(storage_options)
        if kind is StoreKind.LOCAL:
            # The path is not normalised: the system accepts repeated slashes.
            return LocalStore(address.path if address.scheme else uri)
        from delta_maintenance.storage.memory.store import MemoryStore

        return MemoryStore(str(address))
    if kind is StoreKind.OTHER:
        from delta_maintenance.storage.fsspec.store import FsspecStore

        return FsspecStore(str(address), storage_options)
    return _open_with_client(address, storage_options, clients)


def _open_with_client(
    address: Address, storage_options: Mapping[str, str] | None, clients: SharedClients | None
) -> Store:
    client = clients.of(str(address), storage_options) if clients is not None else None
    match address.kind:
        case StoreKind.S3:
            from delta_maintenance.storage.s3.store import S3Store

            return S3Store(str(address), storage_options, client=client)
        case StoreKind.GCS:
            from delta_maintenance.storage.gcs.store import GCSStore

            return GCSStore(str(address), storage_options, client=client)
        case StoreKind.HDFS:
            from delta_maintenance.storage.hdfs.store import HdfsStore

            return HdfsStore(str(address), storage_options, client=client)
        case _:
            from delta_maintenance.storage.azure.store import AzureStore

            return AzureStore(str(address), storage_options, client=client)


def _no_options(storage_options: Mapping[str, str] | None) -> None:
    if storage_options:
        raise InvalidRequestError(
            f"this store has no storage option {next(iter(storage_options))!r}",
            remedy="omit the storage options",
        )
