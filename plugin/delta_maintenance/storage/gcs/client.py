"""Requests to the JSON API of Google Cloud Storage: credentials, and classification of failures."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from delta_maintenance.address import StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.rest.client import Answer, HttpSession, RestClient
from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently
from delta_maintenance.storage.core.option_values import (
    check_endpoint,
    named_values,
    require_package,
)
from delta_maintenance.storage.core.vended import VendedOptions
from delta_maintenance.store_options import names_of, parse_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class GCSOptions:
    """The credentials and the endpoint of Google Cloud Storage.

    Without credentials in the options, `GOOGLE_SERVICE_ACCOUNT_KEY` or `GOOGLE_OAUTH_ACCESS_TOKEN`
    of the environment is used, then Google's default credentials
    (`GOOGLE_APPLICATION_CREDENTIALS`, the gcloud command, the machine). A server without TLS must
    be an emulator and gets anonymous requests.
    """

    key_file: str | None = None
    """The path of a credentials file of any type that Google issues."""
    key: str | None = field(default=None, repr=False)
    """The content of such a file (JSON)."""
    access_token: str | None = field(default=None, repr=False)
    """An OAuth 2.0 access token, which ends after an hour."""
    anonymous: bool = False
    endpoint_url: str | None = None

    @classmethod
    def parse(
        cls, given: Mapping[str, str] | None, environment: Mapping[str, str] | None = None
    ) -> GCSOptions:
        """Parses options from a command line, completed from the environment.

        `InvalidRequestError` for an unknown name, a malformed value, and two names of one option
        with different values. Messages never contain values, because they may be secrets.
        """
        values = named_values(given, names_of(StoreKind.GCS), store="GCS")
        anonymous = parse_flag(values.pop("anonymous", None), "GOOGLE_SKIP_SIGNATURE")
        token = values.pop("token", None)
        if token == "anon":
            anonymous = True
        elif token is not None and token.lstrip().startswith("{"):
            values.setdefault("key", token)
        elif token is not None and token not in ("google_default", "cloud"):
            values.setdefault("key_file", token)
        chosen = [name for name in ("key_file", "key", "access_token") if name in values]
        if len(chosen) + bool(anonymous) > 1:
            raise InvalidRequestError(
                "the storage options name several credentials for GCS",
                remedy="give one of token, a service account, or anonymous access",
            )
        around = environment or {}
        if not chosen and not anonymous and token is None and around.get(_KEY):
            values["key"] = around[_KEY]
        elif not chosen and not anonymous and token is None and around.get(_ACCESS_TOKEN):
            values["access_token"] = around[_ACCESS_TOKEN]
        emulator = around.get("STORAGE_EMULATOR_HOST")
        if "endpoint_url" not in values and emulator:
            with_scheme = emulator if "://" in emulator else f"http://{emulator}"
            values["endpoint_url"] = with_scheme
        if "endpoint_url" in values:
            check_endpoint(values["endpoint_url"], "endpoint_url")
            values["endpoint_url"] = values["endpoint_url"].rstrip("/")
        return cls(anonymous=bool(anonymous), **values)

    @property
    def has_credentials(self) -> bool:
        """Whether the options select credentials."""
        return bool(self.key_file or self.key or self.access_token or self.anonymous)

    def public(self) -> dict[str, str]:
        """Returns the options that are not secret, in a form that `parse` accepts."""
        values = {
            "endpoint_url": self.endpoint_url,
            "GOOGLE_APPLICATION_CREDENTIALS": self.key_file,
            "GOOGLE_SKIP_SIGNATURE": "true" if self.anonymous else None,
        }
        return {name: value for name, value in values.items() if value is not None}

    def secrets(self) -> dict[str, str | None]:
        """Returns the environment variables for the secret options."""
        values = {_KEY: self.key, _ACCESS_TOKEN: self.access_token}
        return {name: value for name, value in values.items() if value is not None}


_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"
_ACCESS_TOKEN = "GOOGLE_OAUTH_ACCESS_TOKEN"


class GCSFailure(RequestFailure):
    """A failed request to Google Cloud Storage."""

    service = "GCS"
    access_codes = frozenset(("NoCredentials", "NoSuchBucket", "RefreshError"))


class GCSClient(RestClient):
    """Sends requests to one bucket. Thread-safe; `sleep` takes seconds.

    `pauses` are the seconds to wait before each further attempt of an idempotent request.
    """

    failure = GCSFailure
    interface = "the JSON API"
    # 308 acknowledges a part of an upload.
    success = frozenset((200, 201, 204, 206, 308))

    def __init__(
        self,
        options: GCSOptions,
        bucket: str,
        *,
        session: HttpSession | None = None,
        sleep: Callable[[float], None] = time.sleep,
        pauses: Sequence[float] = PAUSES,
        vended: VendedOptions[GCSOptions] | None = None,
    ) -> None:
        require_package("google.auth", addresses="addresses on Google Cloud Storage", extra="gcs")
        self.sleep = sleep
        self._pauses = pauses
        self.endpoint = options.endpoint_url or "https://storage.googleapis.com"
        self.bucket_path = f"/storage/v1/b/{quote(bucket, safe='')}"
        self._session = session or HttpSession()
        self._vended = vended
        self._options = options
        self._authorization = _Authorization(options, anonymous=self._is_emulator(options))

    @property
    def is_google(self) -> bool:
        """Whether the server is Google itself, not another server with the same protocol."""
        return (urlsplit(self.endpoint).hostname or "").endswith(".googleapis.com")

    def object_path(self, key: str) -> str:
        """Returns the request path of an object."""
        return f"{self.bucket_path}/o/{quote(key, safe='')}"

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        key: str | None = None,
    ) -> Answer:
        """Sends an idempotent request, with retries. `GCSFailure` after the last attempt."""
        once = partial(self.send, method, path, query=query, headers=headers, body=body, key=key)
        return patiently(once, self.sleep, self._pauses)

    def ask(
        self, path: str, query: Mapping[str, object], *, key: str | None = None
    ) -> dict[str, Any]:
        """Sends a GET request and returns the fields of the answer, with the names of the API."""

        def once() -> dict[str, Any]:
            return self._fields(self.send("GET", path, query=query, key=key))

        return patiently(once, self.sleep, self._pauses)

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        key: str | None = None,
    ) -> Answer:
        """Sends a request once.

        If `path` is a complete URL, it is used unchanged and without credentials: the URL of an
        upload is its own authorisation. `key` is that of the object that the request is for, if
        neither the path nor the query names it.
        """
        query_text = "?" + urlencode(query, quote_via=quote) if query else ""
        if not path.startswith("/"):
            return self._send(method, path + query_text, dict(headers or {}), body)
        url = self.endpoint + path

        def authorize(options: GCSOptions) -> Answer:
            all_headers = dict(headers or {})
            if options.access_token is not None:
                all_headers["authorization"] = f"Bearer {options.access_token}"
            else:
                self._authorization.add(method, url, all_headers)
            return self._send(method, url + query_text, all_headers, body)

        if self._vended is not None:
            if key is None:
                key = self._key(path, query or {})
            return self._vended.sent(authorize, write=method not in ("GET", "HEAD"), key=key)
        return authorize(self._options)

    def divide(self, keys: Sequence[str]) -> list[Sequence[str]]:
        """Divides keys to delete, so that the credentials of a request are those of all keys."""
        return [keys] if self._vended is None else self._vended.divide(keys)

    def _key(self, path: str, query: Mapping[str, object]) -> str:
        name = path.removeprefix(f"{self.bucket_path}/o/")
        return unquote(name) if name != path else str(query.get("name", query.get("prefix", "")))

    def _send(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> Answer:
        def failure_of_answer(answer: Answer) -> GCSFailure:
            # A proxy may echo the request in its answer.
            token = headers.get("authorization", "").rpartition(" ")[2]
            text = answer.body.replace(token.encode(), b"***") if token else answer.body
            return failure_of(answer.status, text)

        return self._exchange(method, url, headers, body, refused=failure_of_answer)

    def _is_emulator(self, options: GCSOptions) -> bool:
        return not (
            options.key_file or options.key or options.access_token
        ) and self.endpoint.startswith("http:")


class _Authorization:
    """The credentials, loaded for the first request and refreshed when they expire."""

    def __init__(self, options: GCSOptions, *, anonymous: bool) -> None:
        self._options = options
        self._anonymous = anonymous or options.anonymous
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._request: Any = None

    def add(self, method: str, url: str, headers: dict[str, str]) -> None:
        """Adds the credentials to a request. `GCSFailure` if there are none."""
        if self._anonymous:
            return
        import google.auth.exceptions
        from google.auth.transport.requests import Request

        try:
            with self._lock:
                if self._credentials is None:
                    self._request = Request()
                    self._credentials = self._look_up()
                self._credentials.before_request(self._request, method, url, headers)
            return
        except google.auth.exceptions.TransportError:
            failure = GCSFailure(
                status=None, code="TransportError", detail="no token could be obtained"
            )
        except google.auth.exceptions.RefreshError as error:
            texts = (str(argument) for argument in error.args if isinstance(argument, str))
            detail = next(texts, "").splitlines()
            failure = GCSFailure(
                status=None, code="RefreshError", detail=detail[0] if detail else ""
            )
        except (google.auth.exceptions.GoogleAuthError, ValueError, OSError) as error:
            # The message of the error may repeat the key.
            failure = GCSFailure(
                status=None, code="NoCredentials", detail=f"none usable, {type(error).__name__}"
            )
        # Raised outside the handler: the caught error may contain the answer of a token server.
        raise failure

    def _look_up(self) -> Any:
        import google.auth

        options = self._options
        # google.auth is only partly typed.
        load: Any = google.auth
        with warnings.catch_warnings():
            # The deprecation warnings concern files from untrusted sources; these come from the
            # user.
            warnings.simplefilter("ignore", DeprecationWarning)
            if options.key is not None:
                return load.load_credentials_from_dict(json.loads(options.key), scopes=_SCOPES)[0]
            if options.key_file is not None:
                return load.load_credentials_from_file(options.key_file, scopes=_SCOPES)[0]
        return load.default(scopes=_SCOPES)[0]


def failure_of(status: int, body: bytes) -> GCSFailure:
    """Converts an unsuccessful answer to a failure."""
    text = body.decode(errors="replace")
    code, detail = f"HTTP {status}", text
    try:
        error = json.loads(text)["error"]
        detail = str(error.get("message", ""))
        code = str(error["errors"][0]["reason"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        # Downloads and proxies answer in plain text.
        pass
    if status == 404 and "bucket does not exist" in detail:
        code = "NoSuchBucket"
    return GCSFailure(status=status, code=code, detail=detail[:200])


_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
