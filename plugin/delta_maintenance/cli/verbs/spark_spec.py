"""`spark-spec` and `spark-stage`: job requests for platforms that this command does not call."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from delta_maintenance.cli.arguments import Verbs, add_table, add_verb, key_value
from delta_maintenance.cli.output import print_json
from delta_maintenance.cli.spark_launcher import split_secrets
from delta_maintenance.operations.core.registry import spark_operations

_PLATFORMS = (
    *("livy", "synapse", "fabric", "emr-serverless", "glue", "glue-job"),
    *("databricks", "dataproc", "dataproc-cluster", "kubernetes"),
)

_SPEC = """\
Print the request for a Spark job on a platform. Nothing is sent, and the table is not opened. Your
client or operator for the platform sends the request, which contains no credentials: the job runs
under an identity of the platform. docs/integrations/spark.md documents the specification of a job
for other platforms."""

_STAGE = """\
Write the two files of a job, job.py and this library as a ZIP file, to a
folder that a cluster can read, and print their addresses for spark-spec and
spark-submit. With --log-store, write the jar of the log store for Delta Spark
on S3 instead, and print its settings for spark-defaults.conf."""


def add_parser(verbs: Verbs) -> None:
    """Adds both verbs."""
    _add_spec(verbs)
    stage = add_verb(
        verbs,
        "spark-stage",
        purpose="spark",
        summary="write the files of a Spark job for a cluster",
        description=_STAGE,
        json_help="print the addresses as one JSON document",
        example="spark-stage s3://jobs/delta-maintenance",
    )
    stage.add_argument(
        "table",
        metavar="FOLDER",
        help="path or URI of the folder: a local path, file:, s3:, gs:, abfss: or az:",
    )
    stage.add_argument(
        "--log-store",
        action="store_true",
        help="write the log store for Delta Spark, whose commits on S3 overwrite no other",
    )
    stage.set_defaults(run=_run_stage)


def _add_spec(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "spark-spec",
        purpose="spark",
        summary="print the request for a Spark job on a platform",
        description=_SPEC,
        json_help="print JSON for Kubernetes too, which is YAML otherwise",
        example="spark-spec optimize s3://lake/sales/orders --for databricks "
        "--application s3://jobs/job.py --report s3://jobs/reports/1.json",
    )
    operations = [record.name for record in spark_operations()]
    parser.add_argument("operation", metavar="VERB", choices=operations, help="the operation")
    add_table(parser)
    parser.add_argument(
        "--for",
        dest="platform",
        metavar="PLATFORM",
        choices=_PLATFORMS,
        required=True,
        help=f"{', '.join(_PLATFORMS)}; dataproc is a serverless batch, glue-job a job and glue a "
        "run of it",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=key_value,
        help="a setting of this platform; an unknown one is answered by all names; repeatable",
    )
    parser.add_argument(
        "--application", metavar="URI", required=True, help="the address of job.py: see spark-stage"
    )
    parser.add_argument(
        "--report", metavar="URI", required=True, help="a new JSON file for the job's answer"
    )
    parser.add_argument(
        "--options",
        metavar="JSON",
        type=_json_object,
        default={},
        help='fields of the operation\'s Options, such as {"retention": "P30D"}',
    )
    output = parser.group("output")
    output.add_argument(
        "--ledger", metavar="URI", help="the job adds a row to this ledger, as nothing waits for it"
    )
    output.add_argument(
        "--ledger-state",
        metavar="URI",
        help="the state folder of a policy, for rows that cannot be added to the ledger",
    )
    parser.add_argument(
        "--plan-only", action="store_true", help="answer with the Plan, and change nothing"
    )
    spark = parser.group("Spark")
    spark.add_argument("--py-files", metavar="URI", action="append", default=[], help="repeatable")
    spark.add_argument(
        "--archives",
        metavar="URI#NAME",
        action="append",
        default=[],
        help="a packed environment and the folder to unpack it in; repeatable",
    )
    spark.add_argument("--python", metavar="PATH", help="such as ./environment/bin/python")
    spark.add_argument("--image", metavar="IMAGE", help="a container image")
    spark.add_argument(
        "--spark-conf",
        metavar="K=V",
        action="append",
        default=[],
        type=key_value,
        help="a Spark property; repeatable. Not all are allowed: see docs/integrations/spark.md",
    )
    spark.add_argument(
        "--env",
        dest="environment",
        metavar="K=V",
        action="append",
        default=[],
        type=key_value,
        help="a variable of driver and executors, nothing secret; repeatable",
    )
    for name, description in (
        ("driver-cores", "N"),
        ("driver-memory", "SIZE"),
        ("executors", "N"),
        ("executor-cores", "N"),
        ("executor-memory", "SIZE"),
        ("executor-memory-overhead", "SIZE"),
    ):
        spark.add_argument(f"--{name}", metavar=description)
    parser.set_defaults(run=_run_spec)


def _run_spec(arguments: argparse.Namespace) -> None:
    # Loads pydantic, which `--help` does not need.
    from delta_maintenance.submission.configuration import require_no_credentials_in_addresses
    from delta_maintenance.submission.exporters import EXPORTERS
    from delta_maintenance.submission.job_spec import JobSpec
    from delta_maintenance.submission.specification import Code, Resources, Submission

    storage_options = dict(arguments.storage_options)
    if arguments.catalog_name is not None:
        # What authenticates to the catalog stays out of the request, like all secrets.
        storage_options, _ = split_secrets(arguments.table, storage_options)
    submission = Submission.of(
        JobSpec.from_json(
            {
                "operation": arguments.operation,
                "table": arguments.table,
                "catalog_name": arguments.catalog_name,
                "storage_options": storage_options,
                "options": arguments.options,
                "ledger": arguments.ledger,
                "ledger_state": arguments.ledger_state,
                "plan_only": arguments.plan_only,
            }
        ),
        report=arguments.report,
        code=Code.from_json({name: getattr(arguments, name) for name in Code.__dataclass_fields__}),
        conf=dict(arguments.spark_conf),
        environment=dict(arguments.environment),
        resources=Resources.from_json(
            {name: getattr(arguments, name) for name in Resources.__dataclass_fields__}
        ),
    )
    require_no_credentials_in_addresses(dict(arguments.settings))
    exporter = EXPORTERS[arguments.platform].from_json(dict(arguments.settings))
    document = exporter.document(submission)
    if arguments.platform == "kubernetes" and not arguments.json:
        import yaml

        yaml.safe_dump(document, sys.stdout, sort_keys=False)
    else:
        print_json(document)


def _run_stage(arguments: argparse.Namespace) -> None:
    from delta_maintenance import __version__
    from delta_maintenance.storage import open_store
    from delta_maintenance.submission.job_spec import APPLICATION
    from delta_maintenance.submission.log_store import JAR, SETTINGS
    from delta_maintenance.submission.spark_submit import library_zip

    if arguments.log_store:
        files = {JAR.name: JAR.read_bytes()}
    else:
        files = {
            "job.py": APPLICATION.read_bytes(),
            f"delta_maintenance-{__version__}.zip": library_zip(),
        }
    store = open_store(arguments.table, dict(arguments.storage_options) or None)
    try:
        for name, data in files.items():
            store.put(name, data)
    finally:
        store.close()
    addresses = [str(store.address.join(name)) for name in files]
    if arguments.log_store:
        # Spark has no file system for the scheme s3.
        jar = re.sub("^s3:", "s3a:", addresses[0])
        settings = {"spark.jars": jar, **SETTINGS}
        lines = "".join(f"{name} {value}\n" for name, value in settings.items())
        print_json(settings) if arguments.json else sys.stdout.write(lines)
        return
    application, library = addresses
    if arguments.json:
        print_json({"application": application, "py_files": [library]})
    else:
        sys.stdout.write(f"{application}\n{library}\n")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("no JSON object")
    return value
