"""Storage settings for executors, so that they reach the table as the driver does."""

from __future__ import annotations

from collections.abc import Mapping

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import RefusedError

_KEY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_TOKEN = "AWS_SESSION_TOKEN"


def executor_options(
    uri: str, storage_options: Mapping[str, str] | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """The storage options, completed by what the driver has in its environment.

    Executors have an environment of their own: on a cluster, that of the machine which started the
    worker. Options win over the environment, and nothing is added to a choice of credentials that
    they make. A role or profile is not looked up: whoever relies on it gives executors the same.
    `RefusedError` for a table that executors cannot reach.
    """
    address = Address.parse(uri)
    if address.kind is StoreKind.MEMORY:
        raise RefusedError(
            "a table in the memory of this process cannot be reached by executors",
            remedy="copy it to a store that they reach, or use the local engine where there is one",
        )
    given = dict(storage_options or {})
    # Loads what speaks to object stores, which a driver of local tables does without.
    from delta_maintenance.storage.options import parse_options
    from delta_maintenance.storage.s3.options import S3Options

    options = parse_options(address, given, environment)
    if options is None:
        return given
    if not isinstance(options, S3Options):
        # The names of their variables are names of options too.
        secrets = {name: value for name, value in options.secrets().items() if value is not None}
        return options.public() | secrets
    chosen = options.access_key_id or options.profile or options.anonymous
    if not chosen and all(environment.get(name) for name in _KEY):
        names = (*_KEY, _TOKEN)
        given |= {name: environment[name] for name in names if environment.get(name)}
    if options.endpoint_url is None and environment.get("AWS_ENDPOINT_URL"):
        given["AWS_ENDPOINT_URL"] = environment["AWS_ENDPOINT_URL"]
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if options.region is None and region:
        given["AWS_REGION"] = region
    return given
