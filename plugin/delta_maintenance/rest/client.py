"""Sessions over HTTP, and the common part of the REST clients."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar
from urllib.parse import urlsplit

from delta_maintenance.redaction import redact
from delta_maintenance.rest.failure import RequestFailure
from delta_maintenance.rest.usage import Meter, Usage, class_of_http


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a server, with any status."""

    status: int
    headers: Mapping[str, str]
    """Names are case-insensitive."""
    body: bytes
    """The bytes as sent; content encodings are not decoded."""


def endpoint_scheme(url: str) -> str | None:
    """Returns the scheme of an endpoint like `https://HOST:PORT`, with an optional path.

    None for another form, such as one with credentials, a query or a fragment.
    """
    try:
        split_url = urlsplit(url)
        sound = (
            split_url.scheme in ("http", "https")
            and split_url.hostname
            and "@" not in split_url.netloc
        )
    except ValueError:
        return None
    return split_url.scheme if sound and not split_url.query and not split_url.fragment else None


class NoAnswer(Exception):
    """No complete answer arrived, so the effect of the request is unknown.

    The error contains no part of the request.
    """

    def __init__(self, *, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(f"{code}: {detail}" if detail else code)


class TooLong(Exception):
    """An answer exceeds the bound of its session."""


class HttpSession:
    """A pool of HTTP connections. Thread-safe.

    Proxies and certificates from the environment are used, stored passwords are not. `timeout` in
    seconds limits the time to connect and the time between received bytes. `auth` is an
    authentication handler of `requests`, for servers that need more than headers. An answer of more
    than `most_bytes` is no answer; of a longer one, no more is received.
    """

    def __init__(
        self,
        *,
        timeout: tuple[float, float] = (5, 60),
        auth: Any = None,
        most_bytes: int | None = None,
    ) -> None:
        # Imported here, so that tables on other stores do not load it.
        import requests
        from requests.adapters import HTTPAdapter

        self.meter = Meter()
        self._timeout = timeout
        self._most_bytes = most_bytes
        self._session = requests.Session()
        # Without `auth`, the session would replace our header with credentials from ~/.netrc.
        self._session.auth = auth or _as_it_is
        # Only the caller retries, because the order of repeated requests decides who wins a commit.
        adapter = HTTPAdapter(pool_maxsize=_CONNECTIONS, max_retries=0, pool_block=True)
        self._session.mount("https://", adapter)
        self._session.mount("http://", adapter)
        # Idempotent: the logger ignores a filter that it already has.
        logging.getLogger("urllib3.connectionpool").addFilter(_without_secrets)

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
    ) -> Answer:
        """Sends one request. A `body` that is a file is sent from its current position to its end.

        `NoAnswer` unless a complete answer arrives.
        """
        import requests
        import urllib3

        kind, sent = class_of_http(method, url), _length(body)
        data = b""
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
                max_bytes = self._most_bytes
                read_bytes = None if max_bytes is None else max_bytes + 1
                data = response.raw.read(read_bytes, decode_content=False)
                if max_bytes is not None and len(data) > max_bytes:
                    raise TooLong(f"the answer is longer than {max_bytes:,} bytes")
            announced = response.headers.get("Content-Length")
            if method != "HEAD" and announced is not None and len(data) != int(announced):
                raise EOFError("the answer ended early")
            return Answer(status=response.status_code, headers=response.headers, body=data)
        except TooLong as error:
            failure = NoAnswer(code="TooLong", detail=str(error))
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
            EOFError,
        ) as error:
            failure = NoAnswer(code=type(error).__name__, detail=_reason(error))
        finally:
            self.meter.count(kind, received=len(data), sent=sent)
        # Raised outside the handler: the caught error contains the address with its signature.
        raise failure

    def close(self) -> None:
        """Closes the connections."""
        self._session.close()


def _length(body: bytes | BinaryIO | None) -> int:
    """Returns the bytes from the current position of a body to its end."""
    if body is None or isinstance(body, bytes):
        return len(body or b"")
    at = body.tell()
    end = body.seek(0, os.SEEK_END)
    body.seek(at)
    return end - at


def _as_it_is(request: Any) -> Any:
    return request


def _without_secrets(record: logging.LogRecord) -> bool:
    """Removes signatures and tokens from the addresses in the log records of the HTTP client."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            redact(value) if isinstance(value, str) else value for value in record.args
        )
    return True


def _reason(error: BaseException) -> str:
    """Returns the innermost system error text; the outer errors repeat the address."""
    seen_errors: set[int] = set()
    while id(error) not in seen_errors:
        seen_errors.add(id(error))
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        below = getattr(error, "reason", None) or error.__cause__ or error.__context__
        if not isinstance(below, BaseException):
            below = next((cause for cause in error.args if isinstance(cause, BaseException)), error)
        error = below
    return ""


# The number of concurrent requests. Further requests wait.
_CONNECTIONS = 32


class RestClient:
    """Sends requests through a session and converts unsuccessful answers to failures."""

    failure: ClassVar[type[RequestFailure]]
    """The failure class of the store."""
    interface: ClassVar[str]
    """The name of the interface, for messages."""
    success: ClassVar[Container[int]] = range(200, 300)
    """The HTTP statuses that count as success."""

    _session: HttpSession

    @property
    def usage(self) -> Usage:
        """The requests until now."""
        return self._session.meter.usage

    def close(self) -> None:
        """Closes the connections."""
        self._session.close()

    def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None,
        *,
        refused: Callable[[Answer], RequestFailure],
    ) -> Answer:
        """Sends one request. Raises `refused(answer)` for an unsuccessful answer."""
        try:
            answer = self._session.send(method, url, headers, body)
        except NoAnswer as error:
            failure = self.failure(status=None, code=error.code, detail=error.detail)
        else:
            if answer.status in self.success:
                return answer
            failure = refused(answer)
        # Raised outside the handler, so that the failure has no `__context__`.
        raise failure

    def _fields(self, answer: Answer) -> dict[str, Any]:
        """Parses the JSON object of an answer."""
        try:
            fields = json.loads(answer.body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            # Sent by a proxy or a gateway, not by the store.
            raise self.failure(
                status=None, code="NotJSON", detail=f"not an answer of {self.interface}"
            )
        return fields
