"""A connection to S3: requests with literal keys, bounded retries, classification of failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from delta_maintenance.address import StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently
from delta_maintenance.rest.usage import Meter, Usage, class_of_s3
from delta_maintenance.storage.core.option_values import check_endpoint, hide_secrets, named_values
from delta_maintenance.storage.core.vended import VendedOptions
from delta_maintenance.store_options import names_of, parse_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """The endpoint and the credentials of S3. botocore looks up missing values as usual."""

    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str] | None) -> S3Options:
        """Parses options from a command line.

        `InvalidRequestError` for an unknown name, a malformed value, and two names of one option
        with different values. Messages never contain values, because they may be secrets.
        """
        values = named_values(given, names_of(StoreKind.S3), store="S3")
        allow_http = parse_flag(values.pop("allow_http", None), "AWS_ALLOW_HTTP")
        anonymous = parse_flag(values.pop("anonymous", None), "AWS_SKIP_SIGNATURE")
        if "endpoint_url" in values:
            scheme = check_endpoint(values["endpoint_url"], "endpoint_url")
            if scheme == "http" and allow_http is False:
                raise InvalidRequestError(
                    "the endpoint is unencrypted and AWS_ALLOW_HTTP is false",
                    remedy="use an https endpoint or allow http",
                )
        if ("access_key_id" in values) != ("secret_access_key" in values):
            raise InvalidRequestError(
                "an access key needs both its id and its secret",
                remedy="give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        return cls(anonymous=bool(anonymous), **values)

    @property
    def has_credentials(self) -> bool:
        """Whether the options select credentials."""
        return bool(self.access_key_id or self.profile or self.anonymous)

    def public(self) -> dict[str, str]:
        """Returns the options that are not secret, in a form that `parse` accepts."""
        values = {
            "endpoint_url": self.endpoint_url,
            "region": self.region,
            "profile": self.profile,
            "anon": "true" if self.anonymous else None,
        }
        return {name: value for name, value in values.items() if value is not None}

    def secrets(self) -> dict[str, str | None]:
        """Returns the environment variables for the secret options.

        None stands for a variable that must not be inherited: a token belongs to its own key.
        """
        if self.access_key_id is None:
            return {}
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.session_token,
        }

    def redact(self, text: str) -> str:
        """Returns the text without any of the secrets."""
        return hide_secrets(text, (self.secret_access_key, self.session_token, self.access_key_id))


Reply = dict[str, Any]
"""The fields of an answer, with the names of the S3 API."""
_ALWAYS = {
    "list_objects_v2": ("IsTruncated",),
    "head_object": ("ContentLength", "LastModified", "ETag"),
    "create_multipart_upload": ("UploadId",),
    "upload_part": ("ETag",),
}
"""The fields that a complete answer contains, by method."""
_READS = frozenset(
    (
        "get_bucket_lifecycle_configuration",
        "get_bucket_versioning",
        "get_object_lock_configuration",
        "get_object",
        "head_object",
        "list_object_versions",
        "list_objects_v2",
    )
)
_NO_KEY: Any = {"access_key_id": None, "secret_access_key": None, "session_token": None}


_SIGNER: ContextVar[S3Options] = ContextVar("_SIGNER")
"""The options whose credentials sign the request of a task."""


def _signing_credentials() -> Any:
    """Returns credentials of botocore that are those of each request."""
    from aiobotocore.credentials import AioCredentials, ReadOnlyCredentials

    class Signing(AioCredentials):  # type: ignore[misc]
        async def get_frozen_credentials(self) -> Any:
            signing_options = _SIGNER.get()
            return ReadOnlyCredentials(
                signing_options.access_key_id,
                signing_options.secret_access_key,
                signing_options.session_token,
            )

    return Signing("", "")


def _timestamp(value: Any) -> datetime:
    """Parses a time like botocore, whose own parser takes two thirds of the time of a listing."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        from botocore.utils import parse_timestamp

        # Headers have another format, and the services that give credentials may send numbers.
        timestamp: datetime = parse_timestamp(value)
        return timestamp


class S3Failure(RequestFailure):
    """A failed request to S3."""

    service = "S3"
    access_codes = frozenset(
        (
            "AccessDenied",
            "AuthorizationHeaderMalformed",
            "ExpiredToken",
            "IllegalLocationConstraintException",
            "InvalidAccessKeyId",
            "InvalidBucketName",
            "InvalidToken",
            "NoSuchBucket",
            "PermanentRedirect",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
            # Raised by the client before it sends anything.
            "CredentialRetrievalError",
            "ConfigNotFound",
            "InvalidRegionError",
            "NoCredentialsError",
            "NoRegionError",
            "PartialCredentialsError",
            "ProfileNotFound",
            "SSOTokenLoadError",
            "TokenRetrievalError",
            "UnauthorizedSSOTokenError",
        )
    )

    @property
    def is_archived(self) -> bool:
        return self.code == "InvalidObjectState"

    @property
    def is_unsupported(self) -> bool:
        return self.status == 501 or self.code in ("NotImplemented", "ParamValidationError")

    @property
    def is_unsure(self) -> bool:
        if self.code in ("RequestTimeout", "SlowDown"):
            return True
        return not self.is_unsupported and super().is_unsure


class S3Client:
    """Sends S3 requests. Thread-safe; `sleep` takes seconds, `read_timeout` is in seconds.

    `pauses` are the seconds to wait before each further attempt of an idempotent request.
    """

    def __init__(
        self,
        options: S3Options,
        *,
        sleep: Callable[[float], None] = time.sleep,
        read_timeout: float = 60,
        pauses: Sequence[float] = PAUSES,
        vended: VendedOptions[S3Options] | None = None,
    ) -> None:
        try:
            # Imported here, because loading it takes half a second and only tables on S3 need it.
            import s3fs  # noqa: F401
            from fsspec.asyn import sync
        except ImportError as error:
            raise InvalidRequestError(
                "addresses on S3 need the package s3fs", remedy="install delta-maintenance[s3]"
            ) from error
        self.sleep = sleep
        self._meter = Meter()
        self._pauses = pauses
        self._read_timeout = read_timeout
        self._options = options
        """Without vended credentials."""
        self._vended = vended
        self._sync = sync
        self._connecting = threading.Lock()
        self._opened: Any = None if vended is not None else self._open(options)

    def _session(self, options: S3Options) -> Any:
        if self._opened is None:
            # The catalog may state the region and the endpoint with the credentials.
            with self._connecting:
                if self._opened is None:
                    self._opened = self._open(options)
        return self._opened

    def _open(self, options: S3Options) -> Any:
        import s3fs
        from aiobotocore.session import AioSession

        session = AioSession(profile=options.profile)
        parsers = session.get_component("response_parser_factory")
        parsers.set_parser_defaults(timestamp_parser=_timestamp)
        if self._vended is not None:
            # Signs each request with the credentials of that moment.
            session._credentials = _signing_credentials()
        client_options = options if self._vended is None else replace(options, **_NO_KEY)
        return s3fs.S3FileSystem(
            session=session,
            key=client_options.access_key_id,
            secret=client_options.secret_access_key,
            token=client_options.session_token,
            endpoint_url=options.endpoint_url,
            anon=options.anonymous,
            client_kwargs={"region_name": options.region} if options.region else {},
            config_kwargs={
                "connect_timeout": 5,
                "read_timeout": self._read_timeout,
                # Only this client retries, because the order of repeated requests decides who wins
                # a commit.
                "retries": {"mode": "standard", "total_max_attempts": 1},
            },
            use_listings_cache=False,
            # A shared instance would keep the credentials in a process-wide cache.
            skip_instance_cache=True,
        )

    @property
    def is_aws(self) -> bool:
        """Whether the server is Amazon S3, not another server with the same protocol."""
        session = self._opened or self._session(
            self._options if self._vended is None else self._vended.current()
        )
        try:
            client = self._sync(session.loop, session.set_session)
        except Exception as error:
            raise _failure(error, self._options) from error
        host = urlsplit(str(client.meta.endpoint_url)).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def call(self, method: str, **parameters: Any) -> Reply:
        """Sends an idempotent request, with retries. `S3Failure` after the last attempt."""
        return patiently(partial(self.send, method, **parameters), self.sleep, self._pauses)

    def send(self, method: str, **parameters: Any) -> Reply:
        """Sends a request once, as far as the layers below do not repeat it.

        If the answer has a `Body`, it contains the bytes.
        """
        if self._vended is not None:
            signed = partial(self._send_as, method, parameters)
            # A listing of the whole bucket has an empty prefix.
            key = parameters.get("Key", parameters.get("Prefix", ""))
            if method == "delete_objects":
                key = parameters["Delete"]["Objects"][0]["Key"]
            return self._vended.sent(signed, write=method not in _READS, key=key)
        return self._send_as(method, parameters, self._options)

    def divide(self, keys: Sequence[str]) -> list[Sequence[str]]:
        """Divides keys to delete, so that the credentials of a request are those of all keys."""
        return [keys] if self._vended is None else self._vended.divide(keys)

    @property
    def usage(self) -> Usage:
        """The requests until now, and the bytes of objects in them."""
        return self._meter.usage

    def close(self) -> None:
        """Closes the connections."""
        if self._opened is None:
            return
        self._sync(self._opened.loop, self._opened.s3.close)

    def _send_as(self, method: str, parameters: dict[str, Any], options: S3Options) -> Reply:
        session = self._session(options)
        received = 0
        try:
            reply: Reply = self._sync(
                session.loop, self._send, session, method, parameters, options
            )
            body = reply.get("Body", b"")
            received = len(body)
            return reply
        # Connection, TLS, parser and credential errors come from four libraries and have no common
        # base class. An error that is not recognised as "no answer" could lose a commit.
        except Exception as error:
            raise _failure(error, options) from error
        finally:
            sent = len(parameters.get("Body", b""))
            self._meter.count(class_of_s3(method), received=received, sent=sent)

    @staticmethod
    async def _send(
        session: Any, method: str, parameters: dict[str, Any], options: S3Options
    ) -> Reply:
        # Each request is a task, which has variables of its own.
        _SIGNER.set(options)
        # The methods of the file system are not used: they cut `?versionId=` off keys, expand
        # globs, and drop parameters that the installed client does not know, such as If-None-Match.
        client = await session.set_session()
        reply: Reply = await getattr(client, method)(**parameters)
        if "Body" in reply:
            async with reply["Body"] as body:
                reply["Body"] = await body.read()
            if len(reply["Body"]) != reply.get("ContentLength", len(reply["Body"])):
                raise EOFError("the answer ended early")
        missing = [name for name in _ALWAYS.get(method, ()) if name not in reply]
        if missing:
            # For a 200 answer without a body, the client returns an answer without values.
            raise EOFError(f"the answer has no {missing[0]}")
        return reply


def _failure(error: Exception, options: S3Options) -> S3Failure:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict) and "Error" in answer:
        detail = answer["Error"]
        return S3Failure(
            status=answer.get("ResponseMetadata", {}).get("HTTPStatusCode"),
            code=str(detail.get("Code", "")),
            detail=options.redact(_message(detail)),
        )
    return S3Failure(status=None, code=type(error).__name__, detail=options.redact(str(error)))


def _message(detail: dict[str, Any]) -> str:
    """Returns the message of an error, with the storage class that an archived object has."""
    texts = (detail.get("Message"), detail.get("StorageClass"))
    return ", ".join(str(part) for part in texts if part)
