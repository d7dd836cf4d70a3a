"""Delta Lake maintenance for Apache Airflow."""

__version__ = "0.1.0"
