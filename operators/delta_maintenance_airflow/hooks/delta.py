"""The connection type `delta`: the credentials and the endpoint of an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from delta_maintenance import Table

_OPTIONS = {"session_token": "AWS_SESSION_TOKEN"}
"""Fields of the form whose storage option has another name."""
_HARMLESS = frozenset(
    {
        "endpoint_url",
        "region",
        "anon",
        "aws_endpoint_url",
        "aws_region",
        "aws_default_region",
        "aws_skip_signature",
        "aws_allow_http",
        "google_skip_signature",
        "account_name",
        "endpoint",
        "azure_storage_account_name",
        "azure_storage_endpoint",
        "azure_skip_signature",
    }
)


class DeltaHook(BaseHook):
    """Opens tables with the storage options of an Airflow connection.

    Login and password are the access key and its secret. Every other field of the connection's
    extra is a storage option under its own name: `region`, `endpoint_url`, `profile`, ...

    :param delta_conn_id: the connection; None where the environment of the worker has all it takes
        (an instance role, variables), and for local tables.
    """

    conn_name_attr = "delta_conn_id"
    default_conn_name = "delta_default"
    conn_type = "delta"
    hook_name = "Delta Lake"

    def __init__(self, delta_conn_id: str | None = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delta_conn_id = delta_conn_id

    def storage_options(self, *, credentials: bool = True) -> dict[str, str]:
        """The storage options; with credentials never to be logged, rendered or stored.

        Without them only those options are given that are known to be none.
        """
        if not self.delta_conn_id:
            return {}
        connection = self.get_connection(self.delta_conn_id)
        given = {
            "AWS_ACCESS_KEY_ID": connection.login,
            "AWS_SECRET_ACCESS_KEY": connection.password,
            **{_OPTIONS.get(name, name): value for name, value in connection.extra_dejson.items()},
        }
        return {
            name: _text(value)
            for name, value in given.items()
            if value not in (None, "") and (credentials or name.lower() in _HARMLESS)
        }

    def options_for(self, address: str) -> dict[str, str] | None:
        """The storage options for a file beside the table: none on the worker's own disks."""
        scheme, colon, _ = address.partition(":")
        local = not colon or "/" in scheme or scheme.lower() == "file"
        return None if local else self.storage_options() or None

    def open_table(self, table_uri: str) -> Table:
        """The table at an address; nothing is read yet."""
        # Loads pyarrow, which the parsing of DAGs must not wait for.
        from delta_maintenance import open_table

        return open_table(table_uri, self.storage_options() or None)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
