"""Delta Lake maintenance for Apache Airflow."""

from delta_maintenance import renamed_modules

__version__ = "0.2.0.dev0"
URL_PREFIX = "/delta-maintenance"
"""The path of the health page, below the address of Airflow's API server."""

_WITH_OPERATORS = (
    "add_constraint",
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

renamed_modules.install(
    __name__, {f"operators.{name}": "operators.operations" for name in _WITH_OPERATORS}
)
