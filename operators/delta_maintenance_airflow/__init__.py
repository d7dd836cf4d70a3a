"""Delta Lake maintenance for Apache Airflow."""

from delta_maintenance.dependencies import require_versions

__version__ = "0.2.0.dev0"
URL_PREFIX = "/delta-maintenance"
"""The path of the health page, below the address of Airflow's API server."""
OLDEST = {"apache_airflow": "3.1"}

require_versions(OLDEST)
