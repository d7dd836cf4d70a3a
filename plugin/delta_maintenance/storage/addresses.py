"""From the address of a table to its store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.local.store import LocalStore

# Everything else is loaded where it is asked for: no table waits for other stores.
if TYPE_CHECKING:
    from delta_maintenance.storage.azure.options import AzureOptions
    from delta_maintenance.storage.gcs.options import GCSOptions
    from delta_maintenance.storage.s3.options import S3Options
    from delta_maintenance.storage.shared_clients import SharedClients


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    clients: SharedClients | None = None,
) -> Store:
    """The store for a table's address, with a connection of its own or out of `clients`.

    A plain path is literal. A `file:` address is a URI, decoded once; all others are literal from
    the bucket on. `storage_options` are for object stores: see `S3Options`, `GCSOptions` and
    `AzureOptions`. `InvalidRequestError` for an address or option that is not understood: where
    nobody has shown how to commit safely, no store is opened.
    """
    address = os.fspath(uri)
    if not address:
        raise InvalidRequestError("the table's address is empty", remedy="give a path or a URI")
    scheme = _SCHEME.match(address)
    if scheme is None:
        _no_options(storage_options)
        return LocalStore(address)
    kind = scheme[1].lower()
    if kind not in ("file", "memory", *_OBJECT_STORES):
        raise InvalidRequestError(
            f"no store is known for addresses that begin with {kind}:",
            remedy=f"use one of {_SUPPORTED}, and ./ before a path that holds a colon",
        )
    if "::" in address:
        raise InvalidRequestError(
            "chained addresses ('::') are not supported", remedy=f"use one of {_SUPPORTED}"
        )
    if unclear := _UNCLEAR.search(address):
        raise InvalidRequestError(
            f"the table's address holds {unclear[0]!r}",
            remedy="give an address without query and fragment",
        )
    if kind in _OBJECT_STORES:
        return _open_object_store(kind, kind + address[len(kind) :], storage_options, clients)
    _no_options(storage_options)
    if kind == "memory":
        from delta_maintenance.storage.memory.store import MemoryStore

        return MemoryStore(kind + address[len(kind) :])
    return LocalStore(_path_of(address))


def parse_options(
    uri: str,
    storage_options: Mapping[str, str] | None,
    environment: Mapping[str, str] | None = None,
) -> S3Options | GCSOptions | AzureOptions | None:
    """What storage options mean for the store at an address; None for one that takes none.

    `environment` completes those of Google and Azure, as the store itself would do.
    """
    kind, _, rest = uri.partition(":")
    kind = kind.lower()
    if kind in _S3:
        from delta_maintenance.storage.s3.options import S3Options

        return S3Options.parse(storage_options)
    if kind in _GCS:
        from delta_maintenance.storage.gcs.options import GCSOptions

        return GCSOptions.parse(storage_options, environment)
    if kind in _AZURE:
        from delta_maintenance.storage.azure.options import AzureAddress, AzureOptions

        address = AzureAddress.parse(f"{kind}:{rest}".rstrip("/"))
        return AzureOptions.parse(storage_options, address, environment)
    return None


def options_over(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """Some storage options over others, whichever of its names each option goes by."""
    given = {meaning for name in upper for meaning in _meanings(name)}
    kept = {name: value for name, value in lower.items() if not given & _meanings(name)}
    return {**kept, **upper}


def _meanings(name: str) -> set[tuple[str, str]]:
    """What an option of this name is, by store."""
    from delta_maintenance.storage.azure import options as azure_options
    from delta_maintenance.storage.gcs import options as gcs_options
    from delta_maintenance.storage.s3 import options as s3_options

    stores = {"s3": s3_options.NAMES, "gcs": gcs_options.NAMES, "azure": azure_options.NAMES}
    return {
        (store, meaning)
        for store, names in stores.items()
        if (meaning := names.get(name) or names.get(name.upper())) is not None
    }


def _open_object_store(
    kind: str,
    address: str,
    storage_options: Mapping[str, str] | None,
    clients: SharedClients | None,
) -> Store:
    client = clients.of(address, storage_options) if clients is not None else None
    if kind in _S3:
        from delta_maintenance.storage.s3.store import S3Store

        return S3Store(address, storage_options, client=client)
    if kind in _GCS:
        from delta_maintenance.storage.gcs.store import GCSStore

        return GCSStore(address, storage_options, client=client)
    from delta_maintenance.storage.azure.store import AzureStore

    return AzureStore(address, storage_options, client=client)


def _path_of(address: str) -> str:
    """The path that a `file:` URI (RFC 8089) names."""
    parts = urlsplit(address)
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        path = ""
    if parts.netloc not in ("", "localhost") or not PurePosixPath(path).is_absolute():
        raise InvalidRequestError(
            "the file: address does not name an absolute path on this machine",
            remedy="write file:///PATH or the plain path",
        )
    return path


def _no_options(storage_options: Mapping[str, str] | None) -> None:
    if storage_options:
        raise InvalidRequestError(
            f"this store has no storage option {next(iter(storage_options))!r}",
            remedy="leave the storage options out",
        )


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_UNCLEAR = re.compile(r"[?#]")
_S3 = ("s3", "s3a", "s3n")
_GCS = ("gs", "gcs")
_AZURE = ("abfss", "abfs", "az")
_OBJECT_STORES = (*_S3, *_GCS, *_AZURE)
_SUPPORTED = f"a local path, file:, memory:, {', '.join(f'{kind}:' for kind in _OBJECT_STORES)}"
