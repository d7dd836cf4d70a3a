"""The storage options of S3, under the names of s3fs and under those of delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from delta_maintenance.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """How to reach S3. What is left out, botocore finds in its environment as usual."""

    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str] | None) -> S3Options:
        """Reads options as they are given on a command line.

        `InvalidRequestError` for an unknown name, a malformed value, and two names of one option
        that disagree. No message repeats a value: it may be a secret.
        """
        values: dict[str, str] = {}
        for name, value in (given or {}).items():
            meaning = _NAMES.get(name) or _NAMES.get(name.upper())
            if meaning is None:
                raise InvalidRequestError(
                    f"S3 has no storage option {name!r}",
                    remedy=f"use one of {', '.join(sorted(_NAMES))}",
                )
            if values.setdefault(meaning, value) != value:
                raise InvalidRequestError(
                    f"the storage option {name!r} contradicts another name of the same option",
                    remedy="give it once",
                )
        allow_http = _flag(values.pop("allow_http", None), "AWS_ALLOW_HTTP")
        anonymous = _flag(values.pop("anonymous", None), "AWS_SKIP_SIGNATURE")
        if "endpoint_url" in values:
            _check_endpoint(values["endpoint_url"], allow_http=allow_http)
        if ("access_key_id" in values) != ("secret_access_key" in values):
            raise InvalidRequestError(
                "an access key needs both its id and its secret",
                remedy="give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        return cls(anonymous=bool(anonymous), **values)

    def redacted(self, text: str) -> str:
        """The text without any of the secrets."""
        for secret in (self.secret_access_key, self.session_token, self.access_key_id):
            if secret:
                text = text.replace(secret, "***")
        return text


_NAMES = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint_url",
    "region": "region",
    "profile": "profile",
    "anon": "anonymous",
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_ENDPOINT_URL": "endpoint_url",
    "AWS_REGION": "region",
    "AWS_DEFAULT_REGION": "region",
    "AWS_PROFILE": "profile",
    "AWS_SKIP_SIGNATURE": "anonymous",
    "AWS_ALLOW_HTTP": "allow_http",
}


def _flag(value: str | None, name: str) -> bool | None:
    if value is None:
        return None
    if value.lower() in ("true", "1"):
        return True
    if value.lower() in ("false", "0"):
        return False
    raise InvalidRequestError(
        f"the storage option {name} is neither true nor false", remedy="write true or false"
    )


def _check_endpoint(url: str, *, allow_http: bool | None) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        sound = False
    if not sound:
        # Not repeated: it may hold a password.
        raise InvalidRequestError(
            "the S3 endpoint is not an address like https://HOST:PORT",
            remedy="correct endpoint_url; credentials go into options of their own",
        )
    if parts.scheme == "http" and allow_http is False:
        raise InvalidRequestError(
            "the S3 endpoint is unencrypted and AWS_ALLOW_HTTP is false",
            remedy="use an https endpoint or allow http",
        )
