"""Spark: the resource that submits jobs, and the job that reports through Dagster Pipes."""

from delta_maintenance.renamed_modules import forward_names

__getattr__ = forward_names(__name__, "delta_maintenance_dagster.spark.spark_resource")
