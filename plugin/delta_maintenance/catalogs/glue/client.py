"""Requests to AWS Glue, with retries and classification of failures."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.redaction import HIDDEN
from delta_maintenance.rest.failure import PAUSES, RequestFailure, patiently

SECRETS = ("access_key_id", "secret_access_key", "session_token")
PLACES = ("region", "profile")


class GlueFailure(RequestFailure):
    """A failed request. `code` is the error code of AWS, or the name of botocore's exception."""

    service = "AWS Glue"
    access_codes = frozenset(
        (
            "AccessDeniedException",
            "ExpiredTokenException",
            "FederationSourceException",
            "IncompleteSignature",
            "InvalidClientTokenId",
            "InvalidInputException",
            "InvalidSignatureException",
            "MissingAuthenticationTokenException",
            "NotAuthorized",
            "OptInRequired",
            "SignatureDoesNotMatch",
            "UnrecognizedClientException",
            # Raised by the client before it sends anything.
            "CredentialRetrievalError",
            "ConfigNotFound",
            "InvalidRegionError",
            "NoCredentialsError",
            "NoRegionError",
            "ParamValidationError",
            "PartialCredentialsError",
            "ProfileNotFound",
            "SSOTokenLoadError",
            "TokenRetrievalError",
            "UnauthorizedSSOTokenError",
        )
    )

    @property
    def missing(self) -> bool:
        return self.code == "EntityNotFoundException"

    @property
    def unanswered(self) -> bool:
        # AWS states all of these as requests that are wrong.
        passes = any(mark in self.code for mark in ("Throttl", "Timeout", "Retryable"))
        return not self.missing and (passes or super().unanswered)


class GlueClient:
    """Sends requests to Glue. Thread-safe. `sleep` takes seconds.

    `options` are those of `SECRETS` and `PLACES`; botocore looks up missing values as usual.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        endpoint: str | None,
        connections: int,
        pauses: Sequence[float] = PAUSES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            # Imported here, because loading it takes time and only this kind needs it.
            import botocore.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise InvalidRequestError(
                "the catalog AWS Glue needs the package botocore",
                remedy="install delta-maintenance[glue]",
            ) from error
        self._pauses, self._sleep = pauses, sleep
        self._secrets = [options[name] for name in SECRETS if name in options]
        self._counting = threading.Lock()
        self.requests = 0
        """The number of requests so far, repeated ones included."""
        failure: GlueFailure | None = None
        try:
            self._client = botocore.session.Session(profile=options.get("profile")).create_client(
                "glue",
                # botocore itself reads only AWS_DEFAULT_REGION.
                region_name=options.get("region") or os.environ.get("AWS_REGION"),
                endpoint_url=endpoint,
                aws_access_key_id=options.get("access_key_id"),
                aws_secret_access_key=options.get("secret_access_key"),
                aws_session_token=options.get("session_token"),
                config=Config(
                    connect_timeout=5,
                    read_timeout=60,
                    max_pool_connections=connections,
                    # Only this client retries, so that requests are counted.
                    retries={"mode": "standard", "total_max_attempts": 1},
                ),
            )
        except (BotoCoreError, ValueError) as error:
            failure = self._failure(error)
        if failure is not None:
            raise InvalidRequestError(
                f"the settings of AWS Glue are not complete or not valid ({failure})",
                remedy="set AWS_REGION and the credentials of AWS, or give the options region, "
                "profile, access_key_id and secret_access_key",
            )

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a request that changes nothing, with retries. `GlueFailure` after the last one.

        Parameters that are None are left out.
        """
        given = {name: value for name, value in parameters.items() if value is not None}

        def attempt() -> dict[str, Any]:
            with self._counting:
                self.requests += 1
            try:
                reply: dict[str, Any] = getattr(self._client, method)(**given)
                return reply
            # Connection, parser and credential errors have no common base class.
            except Exception as error:
                failure = self._failure(error)
            raise failure

        return patiently(attempt, self._sleep, self._pauses)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _failure(self, error: Exception) -> GlueFailure:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict) and "Error" in answer:
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code, detail = answer["Error"].get("Code", ""), answer["Error"].get("Message", "")
        else:
            status, code, detail = None, type(error).__name__, error
        text = str(detail)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return GlueFailure(status=status, code=str(code), detail=text)
