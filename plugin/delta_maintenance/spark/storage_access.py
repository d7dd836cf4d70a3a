"""Storage settings for executors, so that they access the table like the driver."""

from __future__ import annotations

from collections.abc import Mapping

from delta_maintenance.address import Address, StoreKind
from delta_maintenance.errors import RefusedError

_KEY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_TOKEN = "AWS_SESSION_TOKEN"


def executor_options(
    uri: str, storage_options: Mapping[str, str] | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """Returns the storage options, completed from the driver's environment.

    Executors have their own environment: on a cluster, that of the process that started the worker.
    Options take precedence over the environment; if they select credentials, no credentials are
    added. Roles and profiles are not resolved: executors need the same role or profile as the
    driver. Raises `RefusedError` for a table that executors cannot reach.
    """
    address = Address.parse(uri)
    if address.kind is StoreKind.MEMORY:
        raise RefusedError(
            "a table in the memory of this process cannot be reached by executors",
            remedy="copy it to a store that they reach, or use the local engine where there is one",
        )
    given = dict(storage_options or {})
    # Imported here, because a driver of local tables does not need the object store modules.
    from delta_maintenance.storage.options import parse_options
    from delta_maintenance.storage.s3.options import S3Options

    options = parse_options(address, given, environment)
    if options is None:
        return given
    if not isinstance(options, S3Options):
        # Their environment variables are also valid option names.
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
