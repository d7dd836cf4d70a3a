"""Requests to Azure Blob Storage: authentication, and classification of failures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import format_datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from delta_maintenance import clock
from delta_maintenance.rest.client import Answer, HttpSession, RestClient
from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently
from delta_maintenance.storage.azure.options import AzureOptions
from delta_maintenance.storage.core.option_values import hide_secrets, require_package
from delta_maintenance.storage.core.vended import VendedOptions


class AzureFailure(RequestFailure):
    """A request that Azure did not answer with success."""

    service = "Azure"
    access_codes = frozenset(("ContainerNotFound", "NoCredentials"))

    @property
    def precondition_failed(self) -> bool:
        # The last code is returned for signatures that may create blobs but not overwrite them.
        codes = ("BlobAlreadyExists", "UnauthorizedBlobOverwrite")
        return self.status == 412 or self.code in codes

    @property
    def is_changed(self) -> bool:
        # Lease errors have the same status.
        return self.status == 412 and self.code == "ConditionNotMet"

    @property
    def conflict(self) -> bool:
        # None of the conflicts that Azure reports resolves itself within seconds.
        return False

    @property
    def is_archived(self) -> bool:
        return self.code == "BlobArchived"

    @property
    def access(self) -> bool:
        return super().access and not self.precondition_failed


class AzureClient(RestClient):
    """Sends requests to one container. Thread-safe; `sleep` takes seconds.

    `pauses` are the seconds to wait before each further attempt of an idempotent request.
    """

    failure = AzureFailure
    interface = "the Blob service"

    def __init__(
        self,
        options: AzureOptions,
        container: str,
        *,
        session: HttpSession | None = None,
        sleep: Callable[[float], None] = time.sleep,
        pauses: Sequence[float] = PAUSES,
        vended: VendedOptions[AzureOptions] | None = None,
    ) -> None:
        require_package("azure.identity", addresses="addresses on Azure", extra="azure")
        self.sleep = sleep
        self.pauses = pauses
        self.endpoint = options.endpoint
        self._container = container
        self._session = session or HttpSession()
        self._options = options
        self._vended = vended
        self._tokens = _Tokens(options)

    @property
    def is_azure(self) -> bool:
        """Whether the server is Azure itself, not another server with the same protocol."""
        return (urlsplit(self.endpoint).hostname or "").endswith(_HOSTS)

    def call(
        self,
        method: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """Sends an idempotent request, with retries. `AzureFailure` after the last attempt."""
        once = partial(self.send, method, key, query=query, headers=headers, body=body)
        return patiently(once, self.sleep, self.pauses)

    def send(
        self,
        method: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """Sends a request once, for a blob or, without a key, for the container."""
        request = partial(self._send, method, key, query, headers, body)
        if self._vended is not None:
            key = key or (query or {}).get("prefix", "")
            return self._vended.sent(request, write=method not in ("GET", "HEAD"), key=key)
        return request(self._options)

    def _send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: bytes,
        options: AzureOptions,
    ) -> Answer:
        of_service = (query or {}).get("restype") == "service"
        url = f"{self.endpoint}/{'' if of_service else self._container}"
        if key:
            url += "/" + quote(key, safe="/~")
        all_headers = {
            "x-ms-date": format_datetime(clock.now(), usegmt=True),
            "x-ms-version": _VERSION,
            **(headers or {}),
        }
        if options.account_key is not None:
            all_headers["Authorization"] = _signature(
                options.account,
                options.account_key,
                method,
                url,
                query or {},
                all_headers,
                len(body),
            )
        elif options.sas_token is None and not options.anonymous:
            all_headers["Authorization"] = (
                f"Bearer {options.bearer_token or self._tokens.current()}"
            )
        query_parts = [urlencode(query, quote_via=quote)] if query else []
        query_parts += [options.sas_token] if options.sas_token is not None else []
        if query_parts:
            url += "?" + "&".join(query_parts)

        def failure_of_answer(answer: Answer) -> AzureFailure:
            # A proxy may echo the request in its answer.
            token = all_headers.get("Authorization", "").rpartition(" ")[2]
            signature = _SIGNATURE.search(options.sas_token or "")
            secrets = (token, options.sas_token, signature[2] if signature else None)
            return _failure_of(answer, secrets)

        return self._exchange(method, url, all_headers, body or None, refused=failure_of_answer)


class _Tokens:
    """Microsoft Entra tokens, acquired for the first request and renewed before they expire."""

    def __init__(self, options: AzureOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._credential: Any = None

    def current(self) -> str:
        """Returns a valid token. `AzureFailure` if there is none."""
        options = self._options
        if options.endpoint.startswith("http:"):
            raise AzureFailure(
                status=None, code="NoCredentials", detail="tokens are not sent without TLS"
            )
        import azure.core.exceptions

        try:
            with self._lock:
                if self._credential is None:
                    self._credential = self._look_up()
                return str(self._credential.get_token(_SCOPE).token)
        except azure.core.exceptions.ClientAuthenticationError as error:
            detail = str(error).splitlines()[0][:200] if str(error) else ""
            failure = AzureFailure(status=None, code="NoCredentials", detail=detail)
        except (azure.core.exceptions.AzureError, ValueError, OSError) as error:
            failure = AzureFailure(
                status=None, code=type(error).__name__, detail="no token could be obtained"
            )
        # Raised outside the handler: the caught error may contain the answer of a token server.
        raise failure

    def _look_up(self) -> Any:
        import azure.identity

        options = self._options
        if options.client_secret is not None:
            return azure.identity.ClientSecretCredential(
                str(options.tenant_id), str(options.client_id), options.client_secret
            )
        return azure.identity.DefaultAzureCredential(
            **({"managed_identity_client_id": options.client_id} if options.client_id else {})
        )


def _signature(
    account: str,
    key: str,
    method: str,
    url: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    size: int,
) -> str:
    """Returns the `Authorization` header for an account key."""
    lower = {name.lower(): value for name, value in headers.items()}
    ours = sorted(name for name in lower if name.startswith("x-ms-"))
    lines = [method, "", "", str(size or ""), "", lower.get("content-type", ""), "", ""]
    lines += [lower.get("if-match", ""), lower.get("if-none-match", "")]
    lines += [lower.get("if-unmodified-since", ""), ""]
    lines += [f"{name}:{lower[name]}" for name in ours]
    lines.append(f"/{account}{urlsplit(url).path}")
    lines += [f"{name}:{query[name]}" for name in sorted(query)]
    secret, text = base64.b64decode(key), "\n".join(lines).encode()
    mac = base64.b64encode(hmac.new(secret, text, hashlib.sha256).digest()).decode()
    return f"SharedKey {account}:{mac}"


def _failure_of(answer: Answer, secrets: Iterable[str | None]) -> AzureFailure:
    """Converts an unsuccessful answer to a failure."""
    text = hide_secrets(answer.body.decode(errors="replace"), secrets)
    # Only these elements are used, because the rest may repeat the signed text.
    code = answer.headers.get("x-ms-error-code", "")
    code_element = re.search(r"<Code>([^<]*)</Code>", text)
    message = re.search(r"<Message>([^<\n]*)", text)
    return AzureFailure(
        status=answer.status,
        code=code or (code_element[1] if code_element else f"HTTP {answer.status}"),
        detail=message[1].strip()[:200] if message else "",
    )


_VERSION = "2021-12-02"
_SCOPE = "https://storage.azure.com/.default"
_HOSTS = (
    ".blob.core.windows.net",
    ".blob.core.chinacloudapi.cn",
    ".blob.core.usgovcloudapi.net",
    ".blob.storage.azure.net",
)
_SIGNATURE = re.compile(r"\b(sig=)([^&\s\"]+)")
