"""One submission of a job for each platform, with all settings of its exporter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from delta_maintenance.submission import JobSpec
from delta_maintenance.submission.exporters import (
    DatabricksRun,
    DataprocBatch,
    DataprocJob,
    EmrServerlessJobRun,
    Exporter,
    FabricBatch,
    GlueJob,
    GlueJobRun,
    LivyBatch,
    SparkApplication,
    SynapseBatch,
)
from delta_maintenance.submission.specification import Code, Resources, Submission

SPEC = JobSpec(operation="vacuum", table="s3://lake/events", options={"retention": "P30D"})
APPLICATION = "s3://lake/code/job.py"
WHERE = {"report": "s3://lake/reports/1.json"}
PACKED = Code(
    application=APPLICATION,
    py_files=("s3://lake/code/delta_maintenance.zip",),
    archives=("s3://lake/code/environment.tar.gz#environment",),
    python="./environment/bin/python",
)
WHEEL = Code(
    application=APPLICATION, py_files=("s3://lake/code/delta_maintenance-0.1.0-py3-none-any.whl",)
)
ARCHIVE = replace(PACKED, python=None)
IMAGE = Code(application=APPLICATION, image="registry.example/spark:4.0")
SIZE = Resources(
    driver_cores=1,
    driver_memory="2g",
    executors=4,
    executor_cores=2,
    executor_memory="1g",
    executor_memory_overhead="3g",
)
EXECUTORS = Resources(executors=4)


def submission(code: Code, resources: Resources = SIZE, **more: Any) -> Submission:
    """A submission with a property and an environment variable, unless others are given."""
    more = {"conf": {"spark.task.maxFailures": 8}, "environment": {"TMPDIR": "/scratch"}, **more}
    return Submission.of(SPEC, **WHERE, code=code, resources=resources, **more)


LIVY = LivyBatch(name="vacuum-events", proxy_user="etl", queue="maintenance")
SYNAPSE = SynapseBatch(name="vacuum-events")
FABRIC = FabricBatch(environment_id="937e2b52-320c-4e16-b232-f9907e433a0d")
EMR = EmrServerlessJobRun(
    application_id="00fabc",
    execution_role_arn="arn:aws:iam::123456789012:role/lake",
    client_token="8f14e45f-ceea-467f-a0e6-000000000000",
    execution_timeout_minutes=60,
    log_uri="s3://lake/logs/",
)
GLUE = GlueJobRun(
    job_name="delta-maintenance",
    worker_type="G.1X",
    timeout_minutes=60,
    execution_class="FLEX",
    additional_python_modules="pyroaring,xxhash",
)
GLUE_JOB = GlueJob(
    name="delta-maintenance",
    role="arn:aws:iam::123456789012:role/lake",
    glue_version="5.1",
    worker_type="G.1X",
    timeout_minutes=60,
    execution_class="STANDARD",
    max_concurrent_runs=20,
)
DATABRICKS = DatabricksRun(
    spark_version="17.3.x-scala2.13",
    node_type_id="i3.xlarge",
    instance_profile_arn="arn:aws:iam::123456789012:instance-profile/lake",
    idempotency_token="one",
    timeout_seconds=3600,
)
BATCH = DataprocBatch(
    runtime_version="2.3",
    service_account="lake@p.iam.gserviceaccount.com",
    subnetwork_uri="projects/p/regions/r/subnetworks/s",
)
JOB = DataprocJob(project_id="p", cluster_name="etl")
KUBERNETES = SparkApplication(
    namespace="lake", spark_version="4.0.1", service_account="spark", time_to_live_seconds=3600
)
DOCUMENTS: Mapping[str, tuple[Exporter, Submission]] = {
    "livy.json": (LIVY, submission(PACKED)),
    "synapse.json": (SYNAPSE, submission(PACKED)),
    "fabric.json": (FABRIC, submission(PACKED)),
    "emr-serverless.json": (EMR, submission(PACKED)),
    "glue.json": (GLUE, submission(WHEEL, EXECUTORS, environment={})),
    "glue-job.json": (GLUE_JOB, submission(ARCHIVE, EXECUTORS, environment={})),
    "databricks.json": (DATABRICKS, submission(WHEEL, EXECUTORS)),
    "dataproc.json": (BATCH, submission(IMAGE)),
    "dataproc-cluster.json": (JOB, submission(PACKED)),
    "kubernetes.yaml": (KUBERNETES, submission(IMAGE)),
}
