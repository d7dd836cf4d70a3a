"""Delta Lake maintenance for Apache Airflow."""

__version__ = "0.2.0.dev0"
