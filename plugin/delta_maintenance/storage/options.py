"""Parsing of storage options for code that passes them on without opening a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from delta_maintenance.address import CATALOG_TABLE, Address, StoreKind, is_catalog_option
from delta_maintenance.store_options import options_spelled

if TYPE_CHECKING:
    from delta_maintenance.catalogs.reference import CatalogReference


class StoreOptions(Protocol):
    """The parsed options of one store. Hashable; the `repr` contains no secrets."""

    def public(self) -> dict[str, str]:
        """Returns the options that are not secret, in a form that the store accepts."""

    def secrets(self) -> dict[str, str | None]:
        """Returns the environment variables for the secret options.

        None stands for a variable that must not be inherited.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferringOptions:
    """The options of a store that takes something from a catalog."""

    store: StoreOptions | None
    """The options of the store itself."""
    reference: CatalogReference

    def public(self) -> dict[str, str]:
        """Returns the options that are not secret."""
        return {
            **(self.store.public() if self.store is not None else {}),
            **self.reference.public(),
        }

    def secrets(self) -> dict[str, str | None]:
        """Returns the environment variables for the secret options."""
        return {
            **(self.store.secrets() if self.store is not None else {}),
            **self.reference.secrets(),
        }


def split_reference(
    address: Address, storage_options: Mapping[str, str] | None, environment: Mapping[str, str]
) -> tuple[CatalogReference | None, dict[str, str]]:
    """Splits storage options into a reference to the table's catalog and those of the store.

    There is no reference for another address than that of the table, such as that of a report.
    """
    options = dict(storage_options or {})
    store_options = {name: value for name, value in options.items() if not is_catalog_option(name)}
    if CATALOG_TABLE not in options:
        return None, store_options
    # Imported here because most tables belong to no catalog.
    from delta_maintenance.catalogs.reference import CatalogReference

    reference = CatalogReference.of(options, environment)
    return reference if reference is not None and reference.concerns(
        address
    ) else None, store_options


def parse_options(
    uri: str | Address,
    storage_options: Mapping[str, str] | None,
    environment: Mapping[str, str] | None = None,
) -> StoreOptions | None:
    """Parses the storage options of the store at an address; None for a store without options.

    `environment` completes the options of Google, Azure and HDFS, as the store itself does.
    `InvalidRequestError` for an address or option that is not understood.
    """
    address = uri if isinstance(uri, Address) else Address.parse(uri)
    reference, store_options = split_reference(address, storage_options, environment or {})
    options = _of_store(address, store_options, environment)
    return options if reference is None else ReferringOptions(store=options, reference=reference)


def _of_store(
    address: Address, storage_options: Mapping[str, str], environment: Mapping[str, str] | None
) -> StoreOptions | None:
    # Imported on demand, so that a table loads only its own backend.
    match address.kind:
        case StoreKind.S3:
            from delta_maintenance.storage.s3.client import S3Options

            return S3Options.parse(storage_options)
        case StoreKind.GCS:
            from delta_maintenance.storage.gcs.client import GCSOptions

            return GCSOptions.parse(storage_options, environment)
        case StoreKind.AZURE:
            from delta_maintenance.storage.azure.options import AzureAddress, AzureOptions

            location = AzureAddress.of(address)
            return AzureOptions.parse(storage_options, location, environment)
        case StoreKind.HDFS:
            from delta_maintenance.storage.hdfs.options import parse_options as parse_hdfs_options

            return parse_hdfs_options(address, storage_options, environment)
        case _:
            return None


def options_over(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """Merges storage options; `upper` takes precedence, also under another name of an option."""
    replaced = {option for name in upper for option in options_spelled(name)}
    remaining = {
        name: value for name, value in lower.items() if replaced.isdisjoint(options_spelled(name))
    }
    return {**remaining, **upper}


def options_for(uri: str | Address, options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options without those that only other stores have, for tables in several stores.

    Options that no store has are kept, so that opening the store refuses them by name.
    """
    return {name: value for name, value in options.items() if not _of_other_stores(uri, name)}


def unknown_options(uri: str | Address, names: Iterable[str]) -> list[str]:
    """Returns the names that no store knows as options; none for fsspec addresses."""
    address = uri if isinstance(uri, Address) else Address.parse(uri)
    if address.kind is StoreKind.OTHER:
        return []
    return [name for name in names if not options_spelled(name) and not is_catalog_option(name)]


def _of_other_stores(uri: str | Address, name: str) -> bool:
    address = uri if isinstance(uri, Address) else Address.parse(uri)
    stores = {option.store for option in options_spelled(name)}
    return bool(stores) and address.kind is not StoreKind.OTHER and address.kind not in stores
