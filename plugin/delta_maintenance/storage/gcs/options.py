"""The storage options of Google Cloud Storage, with the names of gcsfs and of delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.option_values import check_endpoint, flag, named_values


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
        values = named_values(given, NAMES, store="GCS")
        anonymous = flag(values.pop("anonymous", None), "GOOGLE_SKIP_SIGNATURE")
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
NAMES = {
    "token": "token",
    "endpoint_url": "endpoint_url",
    "GOOGLE_APPLICATION_CREDENTIALS": "key_file",
    "GOOGLE_SERVICE_ACCOUNT": "key_file",
    "GOOGLE_SERVICE_ACCOUNT_PATH": "key_file",
    _KEY: "key",
    _ACCESS_TOKEN: "access_token",
    "GOOGLE_SKIP_SIGNATURE": "anonymous",
}
