"""The metadata of this provider, which Airflow reads at start.

Airflow calls `get_provider_info` while it reads its own configuration, so this module must not
import Airflow.
"""

from __future__ import annotations

from typing import Any

from delta_maintenance.store_options import OPTIONS, Exposure
from delta_maintenance_airflow import URL_PREFIX, __version__

_INTEGRATION = "Delta Lake"
_PACKAGE = "delta_maintenance_airflow"
_OPERATORS = ("approvals", "batch_run", "manual", "policy", "scheduled")
_LINKS = ("HealthPageLink", "ReportLink", "SparkUILink")
_TRIGGERS = ("commit", "commit_event", "policy_commits")


def get_provider_info() -> dict[str, Any]:
    """Returns the description that Airflow's `provider_info.schema.json` defines."""
    return {
        "package-name": "delta-maintenance",
        "name": "Delta Lake Maintenance",
        "description": "Keeps Delta Lake tables healthy: checkpoints, log clean-up, vacuum.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://delta.io/",
                "logo": f"{URL_PREFIX}/static/icon.svg",
                "how-to-guide": [
                    "/docs/integrations/airflow.md",
                    "/docs/integrations/airflow-operators.md",
                ],
                "tags": ["software"],
            }
        ],
        "operators": [
            _modules(
                f"{_PACKAGE}.operators", *(f"{_PACKAGE}.operators.{name}" for name in _OPERATORS)
            )
        ],
        "sensors": [_modules(f"{_PACKAGE}.sensors")],
        "hooks": [_modules(f"{_PACKAGE}.hooks.catalogs", f"{_PACKAGE}.hooks.delta")],
        "triggers": [_modules(*(f"{_PACKAGE}.triggers.{name}" for name in _TRIGGERS))],
        "extra-links": [f"{_PACKAGE}.links.{name}" for name in _LINKS],
        "asset-uris": [
            {
                "schemes": ["delta"],
                "handler": f"{_PACKAGE}.assets.sanitize_uri",
                "factory": f"{_PACKAGE}.assets.create_asset",
                "to_openlineage_converter": f"{_PACKAGE}.assets.convert_asset_to_openlineage",
            }
        ],
        "notifications": [
            f"{_PACKAGE}.notifications.{name}"
            for name in ("ApprovalNotifier", "DeltaFailureNotifier", "MaintenanceSummaryNotifier")
        ],
        "connection-types": [
            _connection_type(),
            *(_catalog_connection_type(*each) for each in _CATALOGS),
        ],
        "config": {"delta_maintenance": _configuration()},
    }


def _configuration() -> dict[str, Any]:
    return {
        "description": "Settings of the Dags and the health page.",
        "options": {
            "policy": _option("The file with the policy.", "/opt/airflow/policy.yaml"),
            "assessments": _option(
                "A dedicated folder for the last assessment of each table: a path or a URI that "
                "workers, triggerer and API server can reach. The default, for a single host, is "
                "delta_maintenance/assessments below AIRFLOW_HOME.",
                "s3://lake/assessments",
            ),
            "assessments_conn_id": _option(
                "The connection of type delta with access to that folder.", "lake"
            ),
            "poll_interval": _option(
                "Seconds between two polls of a watched table; 30 by default.", "30"
            ),
            "separate_approver": _option(
                "True: the person who triggers a run may not approve its plans.", "True"
            ),
            "any_address": _option(
                "True: the Dag for manual runs accepts tables that are not in the policy.", "True"
            ),
            "report_folder": _option(
                "The folder for the reports of Spark jobs, unless a task names another one: an "
                "address that workers and drivers can reach. Required for drivers on a cluster.",
                "s3://lake/spark-reports",
            ),
            "spark_pool_slots": _option(
                "When Airflow starts, it creates a pool named delta_spark with this number of "
                "slots, unless the pool exists. Give it to tasks that submit Spark jobs. Without a "
                "value no pool is created.",
                "4",
            ),
            "documentation": _option(
                "The address of the documentation site, which `make docs` builds; the health page "
                "links to it.",
                "https://docs.example.com/delta-maintenance",
            ),
            "metrics": _option(
                "True: users who may see the health page can read its metrics, at "
                f"{URL_PREFIX}/metrics.",
                "True",
            ),
            "metrics_token": _option(
                "A secret with which programs read the metrics without signing in, as a bearer "
                "token.",
                None,
                sensitive=True,
            ),
            "metrics_token_file": _option(
                "A file with that token, which the API server can read, instead of the option.",
                "/run/secrets/delta-metrics-token",
            ),
            "notify_conn_id": _option(
                "A connection with the URL of a chat as its host: summaries with problems are "
                "posted there.",
                "maintenance_chat",
            ),
        },
    }


def _connection_type() -> dict[str, Any]:
    # Declared here, so that the form is shown without importing the hook.
    secret = {row.form_field for row in OPTIONS if row.exposure is Exposure.SECRET}
    return {
        "connection-type": "delta",
        "hook-class-name": f"{_PACKAGE}.hooks.delta.DeltaHook",
        "hook-name": _INTEGRATION,
        "ui-field-behaviour": {
            "hidden-fields": ["host", "port", "schema"],
            "relabeling": {"login": "S3 access key", "password": "S3 secret key"},
            "placeholders": {"extra": '{"profile": "maintenance"}'},
        },
        "conn-fields": {
            "test_address": _text(
                "Address to test with",
                "A table or a folder that the test button lists, such as s3://lake/events. "
                "It has no other use.",
            ),
            "storage_conn_id": _text(
                "Credentials of the connection",
                "The ID of a connection of the type aws, google_cloud_platform, wasb or adls. "
                "Fields of this form take precedence.",
            ),
            "other_writers": {
                "label": "Who else writes",
                "description": "Required for commits on S3: conditional_put (delta-rs, Trino and "
                "others), spark (Delta Spark), none. The default of all operators.",
                "schema": {
                    "type": ["string", "null"],
                    "enum": ["conditional_put", "spark", "none", None],
                },
            },
            "spark_conn_id": _text(
                "Spark connection", "For large work, unless a task names another connection."
            ),
            "anonymous": {
                "label": "Without credentials",
                "description": "For public data.",
                "schema": {"type": ["boolean", "null"]},
            },
            **{
                name: (_secret if name in secret else _text)(label, description)
                for name, (label, description) in _STORE_FIELDS.items()
            },
        },
    }


_STORE_FIELDS = {
    "endpoint_url": ("Endpoint URL", "Only for stores other than the provider's own."),
    "region": ("S3 region", "If the environment of the worker does not set it."),
    "session_token": ("S3 session token", "Of temporary credentials."),
    "google_key_file": ("Google key file", "The path of a file with credentials, on every worker."),
    "google_key": ("Google key", "The contents of such a file, JSON."),
    "azure_account_name": (
        "Azure account",
        "Only if the address does not name it: az://CONTAINER/PATH.",
    ),
    "azure_account_key": ("Azure account key", "Or one of the following."),
    "azure_sas_token": ("Azure SAS token", "With the right to list and read."),
    "azure_tenant_id": ("Azure tenant", "Of a service principal."),
    "azure_client_id": ("Azure client", "Of a service principal."),
    "azure_client_secret": ("Azure client secret", "Of a service principal."),
}
"""The label and the description of the fields whose values are options of a store."""
_CATALOGS = (
    ("delta_unity_catalog", "UnityCatalogHook", "Delta Lake, Unity Catalog", ()),
    ("delta_glue", "GlueHook", "Delta Lake, AWS Glue", ("region",)),
    ("delta_hive_metastore", "HiveMetastoreHook", "Delta Lake, Hive Metastore", ()),
    ("delta_lakekeeper", "LakekeeperHook", "Delta Lake, Lakekeeper", ("project",)),
    ("delta_polaris", "PolarisHook", "Delta Lake, Apache Polaris", ("realm",)),
    ("delta_gravitino", "GravitinoHook", "Delta Lake, Apache Gravitino", ("metalake",)),
)


def _catalog_connection_type(
    conn_type: str, hook: str, title: str, fields: tuple[str, ...]
) -> dict[str, Any]:
    is_glue, is_hive = conn_type == "delta_glue", conn_type == "delta_hive_metastore"
    login = ("User", "") if is_hive else ("Client ID", "Client secret, or token")
    labels = ("Access key", "Secret key") if is_glue else login
    over_http = {
        "token_address": _text("Token URL", "Where a client obtains its tokens."),
        "scope": _text("Scope", "Of the tokens."),
    }
    own_fields = {
        name: _text(name.capitalize(), "If the environment of the worker does not set it.")
        for name in fields
    }
    return {
        "connection-type": conn_type,
        "hook-class-name": f"{_PACKAGE}.hooks.catalogs.{hook}",
        "hook-name": title,
        "ui-field-behaviour": {
            "hidden-fields": ["port", "schema", *(["password"] if is_hive else [])],
            "relabeling": {"host": "Address", "login": labels[0], "password": labels[1]},
            "placeholders": {"host": "thrift://HOST:9083" if is_hive else "https://HOST"},
        },
        "conn-fields": {
            "catalog": _text(
                "Catalog", "Its name on the server, if a policy uses another one for it."
            ),
            "storage_conn_id": _text(
                "Storage connection",
                "The ID of a connection of the type delta, aws, google_cloud_platform, wasb or "
                "adls, for tables for which the catalog vends no credentials.",
            ),
            "spark_conn_id": _text(
                "Spark connection", "For large work, unless a task names another connection."
            ),
            **own_fields,
            **({} if is_glue or is_hive else over_http),
        },
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": list(names)}


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


def _secret(label: str, description: str) -> dict[str, Any]:
    schema = {"type": ["string", "null"], "format": "password"}
    return {"label": label, "description": description, "schema": schema}


def _option(description: str, example: str | None, *, sensitive: bool = False) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": "string",
        "example": example,
        "default": None,
        "sensitive": sensitive,
    }
