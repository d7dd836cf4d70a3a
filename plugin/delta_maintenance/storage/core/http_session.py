"""Plain HTTP requests, each sent once: the layer below the stores that use REST."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from delta_maintenance.redaction import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a server, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """Under names in any case."""
    body: bytes
    """Exactly as sent: content encodings are not undone."""


class NoAnswer(Exception):
    """No complete answer came, so the effect of the request is unknown.

    Contains nothing of the request.
    """

    def __init__(self, *, code: str, said: str) -> None:
        self.code = code
        self.said = said
        super().__init__(f"{code}: {said}" if said else code)


class HttpSession:
    """Keeps connections open between requests. Thread-safe.

    Proxies and certificates of the environment are used, stored passwords are not. `timeout` is in
    seconds: for a connection to stand, and for the next bytes to come. `auth` is a way to log in
    that `requests` knows, for servers that ask for more than headers.
    """

    def __init__(self, *, timeout: tuple[float, float] = (5, 60), auth: Any = None) -> None:
        # Here, since tables on other stores need not pay for it.
        import requests
        from requests.adapters import HTTPAdapter

        self._timeout = timeout
        self._session = requests.Session()
        # Without an `auth` of its own, a session would replace our header by one from ~/.netrc.
        self._session.auth = auth or _as_it_is
        # Only the caller retries: the order of repeated requests decides who won a commit.
        adapter = HTTPAdapter(pool_maxsize=_CONNECTIONS, max_retries=0, pool_block=True)
        self._session.mount("https://", adapter)
        self._session.mount("http://", adapter)
        # Idempotent: the very same filter is added once.
        logging.getLogger("urllib3.connectionpool").addFilter(_without_secrets)

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
    ) -> Answer:
        """Sends one request; a `body` that is a file is sent from its position to its end.

        `NoAnswer` unless a complete answer comes.
        """
        import requests
        import urllib3

        try:
            with self._session.request(
                method,
                url,
                headers={"Accept-Encoding": "identity", **headers},
                data=body,
                timeout=self._timeout,
                allow_redirects=False,
                stream=True,
            ) as response:
                data: bytes = response.raw.read(decode_content=False)
            announced = response.headers.get("Content-Length")
            if method != "HEAD" and announced is not None and len(data) != int(announced):
                raise EOFError("the answer ended early")
            return Answer(status=response.status_code, headers=response.headers, body=data)
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
            EOFError,
        ) as error:
            failure = NoAnswer(code=type(error).__name__, said=_reason(error))
        # Not from within the handler: the error there holds the address, signature included.
        raise failure

    def close(self) -> None:
        """Closes the connections."""
        self._session.close()


def _as_it_is(request: Any) -> Any:
    return request


def _without_secrets(record: logging.LogRecord) -> bool:
    """Removes signatures and tokens from the addresses that the HTTP client logs."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            redact(value) if isinstance(value, str) else value for value in record.args
        )
    return True


def _reason(error: BaseException) -> str:
    """The system's own words at the bottom of an error; those above repeat the address."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        below = getattr(error, "reason", None) or error.__cause__ or error.__context__
        if not isinstance(below, BaseException):
            below = next((part for part in error.args if isinstance(part, BaseException)), error)
        error = below
    return ""


# Requests at the same time. Others wait.
_CONNECTIONS = 32
