"""A fake catalog on the loopback interface: contents, authentication, pages and faults.

The kinds of catalogs derive from `CatalogServer`. Each answer is kept with the name of the official
model that it has to fit; `official_models` checks them.
"""

from __future__ import annotations

import base64
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, unquote, urlsplit

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs.settings import CatalogSettings
from tests.support.servers.loopback import Hangup, Reply, Request, serve

Parts = tuple[str, ...]
Answer = tuple[str, dict[str, Any]]
"""The name of the official model, and the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One table, view or other thing in a catalog."""

    location: str | None = None
    format: str = "DELTA"
    type: str = "EXTERNAL"
    owner: str | None = None
    comment: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    deleted: bool = False


class Refusal(Exception):
    """An unsuccessful answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message
        super().__init__(message)


class Query(dict[str, str]):
    """The parameters of one request."""


class CatalogServer(ABC):
    """A server. Set its attributes at any time."""

    kind: ClassVar[CatalogKind]
    profile: ClassVar[str]
    token_path: ClassVar[str]
    error_model: ClassVar[str]
    options: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.url = ""
        self.namespaces: dict[Parts, dict[str, Entry]] = {}
        """By the parts of the namespace, from the catalog on."""
        self.page_size = 100
        self.empty_pages = False
        """Whether an empty page with a token comes before each page but the first."""
        self.token: str | None = None
        """The bearer token that is accepted; None: no authentication."""
        self.client = ("client", "client-secret")
        self.token_serves: int | None = None
        """The number of requests after which the first token is no longer accepted."""
        self.failing: dict[Parts, Refusal] = {}
        """Answers to requests that concern a namespace or a table; behind `tags`, to those for its
        tags."""
        self.intercept: Callable[[int, Request], Reply | None] | None = None
        """Gets the number of the request, from 1 on; may answer, or raise `Hangup`."""
        self.lose_answers: set[int] = set()
        """The numbers of requests whose answers are lost after the server has done its work."""
        self.tags: dict[Parts, dict[str, str]] = {}
        """Tags of catalogs, schemas and tables, of servers that state them on request."""
        self.owners: dict[Parts, str] = {}
        """Owners of tables, likewise."""
        self.credentials: list[dict[str, Any]] = []
        """The vended credentials of each table."""
        self.requests: list[str] = []
        self.received: list[Request] = []
        self.answers: list[Answer] = []
        self.most_in_flight = 0
        self.tokens_issued = 0
        self.token_lifetime = 3600
        self._in_flight = 0
        self._served = 0
        self._numbers = count(1)
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Serves until the block ends."""
        with serve(self._handle) as self.url:
            yield self

    def settings(self, *, catalog: str | None = None, **options: str) -> CatalogSettings:
        """The settings with which a client reaches the server."""
        known = {**self.options, **({"token": self.token} if self.token else {}), **options}
        return CatalogSettings(kind=self.kind, address=self.url, catalog=catalog, options=known)

    def with_client_credentials(self) -> dict[str, str]:
        """Requires tokens that the server issues. Returns the options of a client."""
        self.token = "none-issued-yet"
        return {
            "client_id": self.client[0],
            "client_secret": self.client[1],
            "token_address": self.url + self.token_path,
        }

    def add(self, *parts: str, entry: Entry | None = None) -> CatalogName:
        """Adds a table, and the namespaces above it."""
        for end in range(2, len(parts)):
            self.namespaces.setdefault(parts[:end], {})
        self.namespaces[parts[:-1]][parts[-1]] = entry or Entry(
            location=f"s3://bucket/{len(parts)}/{len(self.namespaces[parts[:-1]])}"
        )
        return CatalogName(self.kind, parts)

    @abstractmethod
    def route(self, method: str, steps: Sequence[str], query: Query, headers: Any) -> Answer:
        """Answers a request; raises `Refusal`."""

    @abstractmethod
    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Returns the body of an unsuccessful answer."""

    def catalogs(self) -> list[str]:
        """The names of the catalogs."""
        return sorted({parts[0] for parts in self.namespaces})

    def check(self, *parts: str) -> None:
        """Raises the refusal for a part of the catalog."""
        if refusal := self.failing.get(parts):
            raise refusal

    def tables(self, namespace: Parts) -> dict[str, Entry]:
        """The entries of a namespace."""
        self.check(*namespace)
        if namespace not in self.namespaces:
            raise Refusal(404, "NoSuchNamespaceException", "there is no such namespace")
        return self.namespaces[namespace]

    def page(self, items: Sequence[Any], token: str | None) -> tuple[Sequence[Any], str | None]:
        """One page of a list, and the token of the next one."""
        start = int((token or "0").rstrip("+"))
        if self.empty_pages and start and not (token or "").endswith("+"):
            return [], f"{start}+"
        end = start + self.page_size
        return items[start:end], str(end) if end < len(items) else None

    def _handle(self, request: Request) -> Reply:
        with self._lock:
            number = next(self._numbers)
            self.requests.append(f"{request.method} {request.target}")
            self.received.append(request)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            if self.intercept and (reply := self.intercept(number, request)):
                return reply
            reply = self._answer(request)
            if number in self.lose_answers:
                raise Hangup
            return reply
        finally:
            with self._lock:
                self._in_flight -= 1

    def _answer(self, request: Request) -> Reply:
        parts = urlsplit(request.target)
        query = Query(
            (name, values[0])
            for name, values in parse_qs(parts.query, keep_blank_values=True).items()
        )
        try:
            if parts.path == self.token_path:
                model, body = "OAuthTokenResponse", self._issue(request)
            else:
                self._authenticate(request)
                steps = [unquote(step) for step in parts.path.strip("/").split("/")]
                model, body = self.route(request.method, steps, query, request.headers)
            status = 200
        except Refusal as refusal:
            model, body, status = self.error_model, self.error(refusal), refusal.status
        with self._lock:
            self.answers.append((model, body))
        return _json(status, body)

    def _authenticate(self, request: Request) -> None:
        if self.token is None:
            return
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refusal(401, "UNAUTHENTICATED", "the token is not valid")
        with self._lock:
            self._served += 1
            if self.token_serves is not None and self._served > self.token_serves:
                raise Refusal(401, "UNAUTHENTICATED", "the token has expired")

    def _issue(self, request: Request) -> dict[str, Any]:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        given = form.get("client_id"), form.get("client_secret")
        if (header := request.headers.get("Authorization", "")).startswith("Basic "):
            user, _, password = base64.b64decode(header[6:]).decode().partition(":")
            given = unquote(user), unquote(password)
        if given != self.client or form.get("grant_type") != "client_credentials":
            raise Refusal(400, "invalid_client", "wrong client credentials")
        with self._lock:
            if self.tokens_issued:
                self.token_serves = None
            self.tokens_issued += 1
            self.token = f"issued-token-{self.tokens_issued}"
        return {
            "access_token": self.token,
            "token_type": "bearer",
            "expires_in": self.token_lifetime,
        }


def _json(status: int, body: dict[str, Any]) -> Reply:
    return Reply(
        status=status, headers={"Content-Type": "application/json"}, body=json.dumps(body).encode()
    )
