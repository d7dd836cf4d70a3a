"""Submitting Spark jobs from Airflow tasks."""
