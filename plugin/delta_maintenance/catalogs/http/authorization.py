"""Bearer tokens: given, or obtained with client credentials and renewed before they end."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote, urlencode

from delta_maintenance.catalogs.catalog import MALFORMED
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.rest.client import HttpSession, NoAnswer, endpoint_scheme
from delta_maintenance.rest.failure import RequestFailure

OPTIONS = frozenset(("token", "client_id", "client_secret", "token_address", "scope", "vend"))
"""The options of `CatalogSettings` that all catalogs over HTTP have."""


class RequestRefused(RequestFailure):
    """An unsuccessful request to a catalog or to the server of its tokens."""

    service = "the catalog"

    @property
    def is_unsure(self) -> bool:
        # A page of a proxy, or of another server, comes again.
        return super().is_unsure and self.code not in MALFORMED

    @property
    def conflict(self) -> bool:
        return False


class Authorization:
    """The credentials of a catalog. Thread-safe.

    `token_address` and `scope` apply if the settings have none. `basic` sends the client
    credentials in a header instead of the form. `elapsed` is a clock in seconds.
    """

    def __init__(
        self,
        settings: CatalogSettings,
        session: HttpSession,
        *,
        token_address: str | None = None,
        scope: str | None = None,
        basic: bool = False,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        options = settings.options
        self._given = options.get("token")
        self._id, self._secret = options.get("client_id"), options.get("client_secret")
        self._address = options.get("token_address") or token_address
        self._scope = options.get("scope") or scope
        self._basic = basic
        if bool(self._id) != bool(self._secret):
            raise InvalidRequestError(
                f"the catalog {settings.kind}:// needs both a client_id and a client_secret",
                remedy="give both, or a token",
            )
        if self._id and not self._given and not self._address:
            raise InvalidRequestError(
                f"the catalog {settings.kind}:// has client credentials, but no token_address",
                remedy="give the address of the server that issues its tokens",
            )
        if self._address:
            check_address(self._address, "token_address")
        self._session = session
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._obtained: str | None = None
        self._renew_at = 0.0

    @property
    def has_credentials(self) -> bool:
        """Whether there are credentials."""
        return bool(self._given or self._id)

    @property
    def token(self) -> str | None:
        """A token that is still valid; None without credentials.

        `RequestRefused` if no token can be obtained.
        """
        if self._given or not self._id:
            return self._given
        with self._lock:
            if self._obtained is None or self._elapsed() >= self._renew_at:
                self._obtained, lifetime = self._obtain()
                self._renew_at = self._elapsed() + lifetime - min(60.0, lifetime / 4)
            return self._obtained

    def reject(self, token: str | None) -> bool:
        """Notes that the catalog rejects a token. Returns whether another one can be obtained."""
        if self._given or not self._id:
            return False
        with self._lock:
            if self._obtained == token:
                self._obtained = None
        return True

    def hidden(self, text: str) -> str:
        """Returns the text without the secrets: servers may repeat parts of a request."""
        for secret in (self._given, self._secret, self._obtained):
            if secret:
                text = text.replace(secret, "***")
        return text

    def _obtain(self) -> tuple[str, float]:
        assert self._address is not None and self._id is not None and self._secret is not None
        form = {"grant_type": "client_credentials"}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self._basic:
            pair = f"{quote(self._id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self._id, "client_secret": self._secret}
        if self._scope:
            form["scope"] = self._scope
        try:
            answer = self._session.send(
                "POST", self._address, headers, urlencode(form).encode("ascii")
            )
        except NoAnswer as error:
            failure = RequestRefused(status=None, code=error.code, detail=error.detail)
        else:
            if answer.status == 200:
                if issued := _parse_token(answer.body):
                    return issued
                failure = RequestRefused(
                    status=None, code="NotJSON", detail="no access token in the answer"
                )
            else:
                code, detail = describe_failure(answer.body, self.hidden)
                # A token server answers 400 to wrong client credentials.
                status = 401 if answer.status == 400 else answer.status
                failure = RequestRefused(
                    status=status, code=code or f"HTTP {answer.status}", detail=detail
                )
        # Raised outside the handler, so that the failure has no `__context__`.
        raise failure


def describe_failure(body: bytes, hidden: Callable[[str], str]) -> tuple[str, str]:
    """Returns the code and the message of an unsuccessful answer, in the forms of all catalogs.

    `hidden` removes the secrets, because servers may repeat a part of the request.
    """
    text = body[:100_000].decode(errors="replace")
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, Mapping):
        # A page of a proxy says nothing that a line could repeat.
        return "", "" if text.lstrip().startswith("<") else hidden(text)[:200]
    error = document.get("error")
    inner = error if isinstance(error, Mapping) else document
    code = inner.get("error_code") or inner.get("type") or inner.get("error") or ""
    detail = inner.get("message") or inner.get("error_description") or ""
    return hidden(str(code))[:100], hidden(str(detail))[:200]


def check_address(address: str, name: str) -> str:
    """Returns an address like `https://HOST:PORT/PATH` without a slash at its end.

    `InvalidRequestError` for another form; the message does not repeat it, because it may contain
    a password.
    """
    if endpoint_scheme(address) is None:
        raise InvalidRequestError(
            f"the {name} of the catalog is not an address like https://HOST",
            remedy="correct it; pass credentials as options",
        )
    return address.rstrip("/")


def _parse_token(body: bytes) -> tuple[str, float] | None:
    """Returns the token and its lifetime in seconds."""
    try:
        document = json.loads(body)
        token = document["access_token"]
        lifetime = float(document.get("expires_in") or 3600)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return (token, lifetime) if isinstance(token, str) and token else None
