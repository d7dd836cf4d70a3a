"""What Airflow learns about this provider when it starts.

Airflow calls `get_provider_info` while its own configuration is still being read, so nothing here
imports Airflow.
"""

from __future__ import annotations

from typing import Any

from delta_maintenance_airflow import __version__

_INTEGRATION = "Delta Lake"
_PACKAGE = "delta_maintenance_airflow"
_OPERATORS = (
    "backfill_row_ids",
    "checkpoint",
    "clean_log",
    "compact_log",
    "drop_feature",
    "fsck",
    "set_properties",
    "upgrade_protocol",
    "vacuum",
)


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
                "tags": ["software"],
            }
        ],
        "operators": [_modules(*(f"{_PACKAGE}.operators.{name}" for name in _OPERATORS))],
        "sensors": [_modules("delta_maintenance_airflow.sensors.commit")],
        "hooks": [_modules("delta_maintenance_airflow.hooks.delta")],
        "connection-types": [
            {
                "connection-type": "delta",
                "hook-class-name": "delta_maintenance_airflow.hooks.delta.DeltaHook",
                "hook-name": _INTEGRATION,
                # Declared here, the form is drawn without importing the hook.
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "port", "schema"],
                    "relabeling": {"login": "Access key", "password": "Secret key"},
                    "placeholders": {"extra": '{"endpoint_url": "http://localhost:9000"}'},
                },
                "conn-fields": {
                    "region": _text("Region", "Region of the object store."),
                    "endpoint_url": _text(
                        "Endpoint URL", "Only for stores other than the provider's own."
                    ),
                    "session_token": {
                        "label": "Session token",
                        "description": "Of temporary credentials.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                },
            }
        ],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": list(names)}


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}
