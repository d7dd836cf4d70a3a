"""Requests to the REST interface of a catalog."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from delta_maintenance.catalogs.catalog import catalog_error
from delta_maintenance.catalogs.http.authorization import (
    OPTIONS,
    Authorization,
    RequestRefused,
    check_address,
    describe_failure,
)
from delta_maintenance.catalogs.settings import CatalogSettings, address_variable
from delta_maintenance.errors import CatalogError, InvalidRequestError
from delta_maintenance.rest.client import Answer, HttpSession, RestClient
from delta_maintenance.rest.failure import PAUSES, patiently

MOST_PAGES = 10_000
"""The number of pages of a list that are requested. A server can invent pages for ever."""
MOST_BYTES = 32 << 20
"""The length of an answer that is received. Parsed JSON takes many times its length."""


class CatalogClient(RestClient):
    """Sends requests to one catalog and counts them. Thread-safe.

    `title` names the kind of catalog in messages, `rights` what a caller needs. Paths of requests
    follow `address`.
    """

    failure = RequestRefused
    interface = "a catalog"

    def __init__(
        self,
        authorization: Authorization,
        session: HttpSession,
        *,
        address: str,
        title: str,
        rights: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.title = f"{title} at {address}"
        self.address = address
        self._session = session
        self._authorization = authorization
        self._rights = rights
        self._headers = dict(headers or {})
        self._lock = threading.Lock()
        self.requests = 0
        """The number of requests that were sent, retries included, without those for tokens."""
        self.answers = 0
        """The number of successful answers."""

    def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Sends a GET request, with retries. Returns the JSON object of the answer.

        `RequestRefused` after the last attempt.
        """
        return self.send("GET", path, query, headers=headers)

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        retried: bool = True,
    ) -> dict[str, Any]:
        """Sends a request with a JSON object as its body, with retries if it is idempotent.

        Returns the JSON object of the answer; empty for an empty answer. `RequestRefused` after
        the last attempt.
        """
        url = self.address + path
        if query:
            url += "?" + urlencode(query, quote_via=quote, safe="")
        data = None if body is None else json.dumps(body).encode()
        once = partial(self._once, method, url, headers or {}, data)
        return patiently(once, time.sleep, PAUSES) if retried else once()

    def pages(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        token: str = "page_token",
        next_token: str = "next_page_token",
    ) -> Iterator[dict[str, Any]]:
        """Yields the pages of a list. A page may be empty and yet not be the last one.

        `token` is the parameter, and `next_token` the field, with the token of the next page.
        """
        page_tokens: set[str] = set()
        page_query = dict(query)
        for _ in range(MOST_PAGES):
            page = self.get(path, page_query)
            yield page
            following = page.get(next_token)
            if not following:
                return
            following = str(following)
            if following in page_tokens:
                raise RequestRefused(
                    status=None, code="NotJSON", detail="the list repeats a page for ever"
                )
            page_tokens.add(following)
            page_query[token] = following
        raise RequestRefused(
            status=None, code="TooLong", detail=f"the list has more than {MOST_PAGES:,} pages"
        )

    @contextmanager
    def naming(self, where: str) -> Iterator[None]:
        """Converts failures of requests in the block to errors that name a part of the catalog."""
        try:
            yield
        except RequestRefused as failure:
            raise self.error(failure, where) from None

    def error(
        self, failure: RequestRefused, where: str, *, needs: str | None = None
    ) -> CatalogError:
        """Converts a failure to the error for users. `where` names a part of the catalog, `needs`
        the rights, if they are others than those of the client.
        """
        return catalog_error(
            failure,
            server=self.title,
            where=where,
            needs=needs or self._rights,
            anonymous=not self._authorization.has_credentials
            and "Authorization" not in self._headers,
        )

    def _once(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> dict[str, Any]:
        token = self._authorization.token
        try:
            return self._attempt(method, url, headers, body, token)
        except RequestRefused as failure:
            if failure.status != 401 or not self._authorization.reject(token):
                raise
        # The token has ended early, or was revoked: once more with another one.
        return self._attempt(method, url, headers, body, self._authorization.token)

    def _attempt(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        token: str | None,
    ) -> dict[str, Any]:
        all_headers = {"Accept": "application/json", **self._headers, **headers}
        if body is not None:
            all_headers["Content-Type"] = "application/json"
        if token is not None:
            all_headers["Authorization"] = f"Bearer {token}"
        with self._lock:
            self.requests += 1
        answer = self._exchange(method, url, all_headers, body, refused=self._refusal)
        fields = self._fields(answer) if answer.body.strip() else {}
        with self._lock:
            self.answers += 1
        return fields

    def _refusal(self, answer: Answer) -> RequestRefused:
        code, detail = describe_failure(answer.body, self._authorization.hidden)
        status = answer.status
        if status == 403 and "access token" in detail.lower():
            # Databricks.
            status = 401
        return RequestRefused(status=status, code=code or f"HTTP {answer.status}", detail=detail)


def checked_settings(settings: CatalogSettings, *options: str, title: str) -> str:
    """Returns the address of a catalog. `options` are those that only this kind has.

    `InvalidRequestError` for a missing or malformed address, for unknown options, and if the
    package for requests is not installed.
    """
    if find_spec("requests") is None:
        raise InvalidRequestError(
            f"the catalog {title} needs the package requests",
            remedy="install delta-maintenance[catalogs]",
        )
    if settings.address is None:
        raise InvalidRequestError(
            f"{title} has no address",
            remedy=f"give one like https://HOST, or set {address_variable(settings.kind)}",
        )
    settings.only(*OPTIONS, *options)
    return check_address(settings.address, "address")


def without_path(address: str, *endings: str) -> str:
    """Returns an address without the first of these endings that it has."""
    for ending in endings:
        if address.endswith(ending):
            return address.removesuffix(ending)
    return address


def origin(address: str) -> str:
    """Returns `https://HOST:PORT` of an address."""
    url = urlsplit(address)
    return f"{url.scheme}://{url.netloc}"


def entries(page: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """Returns the objects in a list of a page; a missing list is empty."""
    values = page.get(field)
    return (
        [entry for entry in values if isinstance(entry, dict)] if isinstance(values, list) else []
    )


def segment(name: str) -> str:
    """Returns a name as one segment of a path. `CatalogError` for one that no path can have."""
    is_text = name.encode(errors="replace").decode() == name
    if name in ("", ".", "..") or not is_text:
        raise CatalogError(f"{name!r} cannot be requested from a catalog", remedy="rename it")
    return quote(name, safe="")
