"""Delta Lake maintenance for Apache Airflow."""

__version__ = "0.2.0.dev0"
URL_PREFIX = "/delta-maintenance"
"""The path of the health page, below the address of Airflow's API server."""
