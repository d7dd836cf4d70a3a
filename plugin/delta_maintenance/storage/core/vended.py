"""The options of a store whose credentials a catalog vends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Self, TypeVar

from delta_maintenance.address import Address
from delta_maintenance.catalogs.models import VendedCredentials
from delta_maintenance.catalogs.reference import CatalogReference
from delta_maintenance.catalogs.vending import CredentialSource, source_of
from delta_maintenance.rest.failure import RequestFailure

Options = TypeVar("Options")
T = TypeVar("T")


class VendedOptions(Generic[Options]):
    """Options that change with each renewal of the credentials. Thread-safe.

    `merged` adds the storage options of vended credentials to those that a user gave.
    """

    def __init__(
        self, source: CredentialSource, merged: Callable[[Mapping[str, str]], Options]
    ) -> None:
        self._source = source
        self._merged = merged
        self._last: tuple[VendedCredentials, Options] | None = None

    @classmethod
    def of(
        cls,
        reference: CatalogReference,
        root: Address,
        merged: Callable[[Mapping[str, str]], Options],
    ) -> Self:
        """The options of the store of a table, which others in this process may share."""
        return cls(source_of(reference, root), merged)

    def current(self, *, write: bool = False) -> Options:
        """Returns the options for a request now. Raises the errors of `CredentialSource`."""
        return self._of(self._source.current(write=write))

    def sent(self, request: Callable[[Options], T], *, write: bool) -> T:
        """Sends a request, and once more if the store rejects the credentials.

        A rejected request had no effect.
        """
        credentials = self._source.current(write=write)
        try:
            return request(self._of(credentials))
        except RequestFailure as failure:
            if not failure.access or not self._source.rejected(credentials):
                raise
        return request(self.current(write=write))

    def _of(self, credentials: VendedCredentials) -> Options:
        last = self._last
        if last is None or last[0] is not credentials:
            self._last = last = (credentials, self._merged(credentials.options))
        return last[1]
