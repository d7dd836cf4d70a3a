"""One connection to S3: requests with literal keys, bounded retries, failures told apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from delta_maintenance.errors import InvalidRequestError, StorageAccessError, StorageError
from delta_maintenance.storage.s3_options import S3Options

Reply = dict[str, Any]
"""The fields of one answer, named as the S3 API names them."""

PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds to wait before each further attempt."""


class S3Failure(Exception):
    """A request that S3 did not answer with success.

    `status` is the HTTP status, None where no answer came; `code` is the error code of S3, or the
    name of the client's own error.
    """

    def __init__(self, *, status: int | None, code: str, said: str) -> None:
        self.status = status
        self.code = code
        super().__init__(f"{code}: {said}" if said else code)

    @property
    def missing(self) -> bool:
        """There is no such object."""
        return self.status == 404 and self.code != "NoSuchBucket"

    @property
    def refuted(self) -> bool:
        """The condition of the request does not hold."""
        return self.status == 412

    @property
    def conflict(self) -> bool:
        """Another request for the same key was under way; this one had no effect."""
        return self.status == 409

    @property
    def unsupported(self) -> bool:
        """The store, or the installed client, does not know this kind of request."""
        return self.status == 501 or self.code in ("NotImplemented", "ParamValidationError")

    @property
    def access(self) -> bool:
        """Only other credentials, permissions or another address can help."""
        return self.status in (301, 307, 401, 403) or self.code in _ACCESS_CODES

    @property
    def unanswered(self) -> bool:
        """Whether the request took effect is unknown; it may be sent again."""
        if self.access or self.unsupported:
            return False
        return (
            self.status is None
            or self.status >= 500
            or self.status == 429
            or self.code in ("RequestTimeout", "SlowDown")
        )


class S3Client:
    """Sends S3 requests. Thread-safe; `sleep` takes seconds."""

    def __init__(self, options: S3Options, *, sleep: Callable[[float], None] = time.sleep) -> None:
        try:
            # Here, since it costs half a second that tables on other stores need not pay.
            import s3fs
            from fsspec.asyn import sync
        except ImportError as error:
            raise InvalidRequestError(
                "addresses on S3 need the package s3fs",
                remedy="install delta-maintenance[s3]",
            ) from error
        self.sleep = sleep
        self._options = options
        self._sync = sync
        self._session = s3fs.S3FileSystem(
            key=options.access_key_id,
            secret=options.secret_access_key,
            token=options.session_token,
            endpoint_url=options.endpoint_url,
            anon=options.anonymous,
            client_kwargs={"region_name": options.region} if options.region else {},
            config_kwargs={
                "connect_timeout": 5,
                "read_timeout": 60,
                # Every retry is ours: what is sent again, and after what, decides who won a commit.
                "retries": {"mode": "standard", "total_max_attempts": 1},
            },
            use_listings_cache=False,
            # A shared instance would keep the credentials in a process-wide cache.
            skip_instance_cache=True,
            **({"profile": options.profile} if options.profile else {}),
        )

    @property
    def is_aws(self) -> bool:
        """Whether Amazon itself answers, and not a server that speaks its protocol."""
        client = self._run(self._session.set_session)
        host = urlsplit(str(client.meta.endpoint_url)).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def call(self, method: str, **parameters: Any) -> Reply:
        """Sends a request that may be repeated without harm. `S3Failure` when patience ends."""
        for pause in PAUSES:
            try:
                return self.send(method, **parameters)
            except S3Failure as failure:
                if not (failure.unanswered or failure.conflict):
                    raise
            self.sleep(pause)
        return self.send(method, **parameters)

    def send(self, method: str, **parameters: Any) -> Reply:
        """Sends a request once, as far as the layers below let it be known.

        `Body` of the answer, where there is one, holds the bytes.
        """
        reply: Reply = self._run(self._send, method, parameters)
        return reply

    def close(self) -> None:
        """Closes the connections."""
        self._sync(self._session.loop, self._session.s3.close)

    def _run(self, coroutine: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self._sync(self._session.loop, coroutine, *arguments)
        # Connection, TLS, parser and credential errors come from four libraries and have no base
        # class in common; an error not recognised as "no answer" could lose a commit.
        except Exception as error:
            raise self._failure(error) from error

    async def _send(self, method: str, parameters: dict[str, Any]) -> Reply:
        # Not the file system's own calls: they cut `?versionId=` off keys, expand globs, and leave
        # out parameters which the installed client does not know, If-None-Match among them.
        client = await self._session.set_session()
        reply: Reply = await getattr(client, method)(**parameters)
        if "Body" in reply:
            async with reply["Body"] as body:
                reply["Body"] = await body.read()
            if len(reply["Body"]) != reply.get("ContentLength", len(reply["Body"])):
                raise EOFError("the answer ended early")
        return reply

    def _failure(self, error: Exception) -> S3Failure:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict) and "Error" in answer:
            said = answer["Error"]
            return S3Failure(
                status=answer.get("ResponseMetadata", {}).get("HTTPStatusCode"),
                code=str(said.get("Code", "")),
                said=self._options.redacted(str(said.get("Message", ""))),
            )
        return S3Failure(
            status=None, code=type(error).__name__, said=self._options.redacted(str(error))
        )


def storage_error(failure: S3Failure, *, permission: str, file: str | None = None) -> StorageError:
    """What to tell a user of this library. `permission` names what the request needs."""
    if failure.access:
        return StorageAccessError(
            f"S3 turns the request away ({failure})",
            file=file,
            remedy=f"check credentials, bucket and region, and grant {permission}",
        )
    return StorageError(f"S3 failed ({failure})", file=file, remedy="run again when it is well")


_ACCESS_CODES = frozenset(
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
        # The client's own, before anything is sent.
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
