"""Spark: the resource that submits jobs, and the job that reports through Dagster Pipes."""
