"""The options of a store whose credentials a catalog vends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, Self, TypeVar

from delta_maintenance.address import Access, Address
from delta_maintenance.catalogs.catalog import VendedCredentials
from delta_maintenance.catalogs.credentials import CredentialSource, source_of
from delta_maintenance.catalogs.reference import CatalogReference
from delta_maintenance.rest.failure import RequestFailure

Options = TypeVar("Options")
T = TypeVar("T")


class VendedOptions(Generic[Options]):
    """Options that change with each renewal of the credentials. Thread-safe.

    Each request has those of the longest prefix that contains its key, which is the path after the
    bucket or container. `merged` adds the storage options of vended credentials to those that a
    user gave.
    """

    def __init__(
        self,
        source: CredentialSource,
        root: Address,
        merged: Callable[[Mapping[str, str]], Options],
    ) -> None:
        self._source = source
        self._bucket = replace(root, path="")
        self._merged = merged
        self._last: dict[str, tuple[VendedCredentials, Options]] = {}

    @classmethod
    def of(
        cls,
        reference: CatalogReference,
        root: Address,
        merged: Callable[[Mapping[str, str]], Options],
    ) -> Self:
        """The options of the store of a table, which others in this process may share."""
        return cls(source_of(reference, root), root, merged)

    def expect(self, access: Access, key: str) -> None:
        """States what the next requests are for: see `CredentialSource.expect`."""
        self._source.expect(access, self._address(key))

    def current(self, *, write: bool = False) -> Options:
        """Returns the options for the root now. Raises the errors of `CredentialSource`."""
        return self._of(self._source.current(write=write))

    def divide(self, keys: Sequence[str]) -> list[Sequence[str]]:
        """Divides keys to delete, so that one request can delete each part."""
        keys_by_prefix: dict[str, list[str]] = {}
        for key in keys:
            held = self._source.current(write=True, address=self._address(key))
            keys_by_prefix.setdefault(held.prefix, []).append(key)
        return [*keys_by_prefix.values()]

    def sent(self, request: Callable[[Options], T], *, write: bool, key: str) -> T:
        """Sends a request for a key, and once more if the store rejects the credentials.

        A rejected request had no effect. Of a listing, the key is the common prefix.
        """
        address = self._address(key)
        credentials = self._source.current(write=write, address=address)
        try:
            return request(self._of(credentials))
        except RequestFailure as failure:
            if not failure.access or not self._source.reject(credentials):
                raise
        return request(self._of(self._source.current(write=write, address=address)))

    def _address(self, key: str) -> Address:
        return self._bucket.join(key.rstrip("/")) if key else self._bucket

    def _of(self, credentials: VendedCredentials) -> Options:
        last_options = self._last.get(credentials.prefix)
        if last_options is None or last_options[0] is not credentials:
            last_options = credentials, self._merged(credentials.options)
            self._last[credentials.prefix] = last_options
        return last_options[1]
