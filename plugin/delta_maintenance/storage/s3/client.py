"""A connection to S3: requests with literal keys, bounded retries, classification of failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.request_failure import PAUSES, RequestFailure, patiently
from delta_maintenance.storage.s3.options import S3Options

Reply = dict[str, Any]
_ALWAYS = {
    "list_objects_v2": ("IsTruncated",),
    "head_object": ("ContentLength", "LastModified", "ETag"),
    "create_multipart_upload": ("UploadId",),
    "upload_part": ("ETag",),
}
"""What a whole answer contains, by method."""
"""The fields of one answer, named as the S3 API names them."""


class S3Failure(RequestFailure):
    """A request that S3 did not answer with success."""

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

    @property
    def unsupported(self) -> bool:
        return self.status == 501 or self.code in ("NotImplemented", "ParamValidationError")

    @property
    def unanswered(self) -> bool:
        if self.code in ("RequestTimeout", "SlowDown"):
            return True
        return not self.unsupported and super().unanswered


class S3Client:
    """Sends S3 requests. Thread-safe; `sleep` takes seconds, `read_timeout` is in seconds.

    `pauses`, in seconds, come before each further attempt of a request that may be repeated.
    """

    def __init__(
        self,
        options: S3Options,
        *,
        sleep: Callable[[float], None] = time.sleep,
        read_timeout: float = 60,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        try:
            # Here, because loading it takes half a second and only tables on S3 need it.
            import s3fs
            from fsspec.asyn import sync
        except ImportError as error:
            raise InvalidRequestError(
                "addresses on S3 need the package s3fs",
                remedy="install delta-maintenance[s3]",
            ) from error
        self.sleep = sleep
        self._pauses = pauses
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
                "read_timeout": read_timeout,
                # Only this client retries: the order of repeated requests decides who won a commit.
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
        """Sends a request that may be repeated. `S3Failure` after the last attempt."""
        return patiently(partial(self.send, method, **parameters), self.sleep, self._pauses)

    def send(self, method: str, **parameters: Any) -> Reply:
        """Sends a request once, as far as the layers below let it be known.

        `Body` of the answer, if there is one, contains the bytes.
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
        missing = [name for name in _ALWAYS.get(method, ()) if name not in reply]
        if missing:
            # Of an answer of 200 without a body, the client makes one without values.
            raise EOFError(f"the answer has no {missing[0]}")
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
