"""The storage options of S3, with the names of s3fs and of delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.option_values import (
    check_endpoint,
    flag,
    named_values,
    redacted,
)


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
        values = named_values(given, NAMES, store="S3")
        allow_http = flag(values.pop("allow_http", None), "AWS_ALLOW_HTTP")
        anonymous = flag(values.pop("anonymous", None), "AWS_SKIP_SIGNATURE")
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

    def redacted(self, text: str) -> str:
        """Returns the text without any of the secrets."""
        return redacted(text, (self.secret_access_key, self.session_token, self.access_key_id))


NAMES = {
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
