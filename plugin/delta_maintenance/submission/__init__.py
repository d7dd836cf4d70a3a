"""Submission of Spark jobs: specification, files, and the requests of each platform.

Imports neither PySpark nor an orchestrator, so that all submitters can share it.
"""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    job_report="DriverLine JobError JobReport read_report",
    job_spec="APPLICATION JobSpec",
    spark_submit="DriverProcess find_spark_home library_zip submit_command",
)
