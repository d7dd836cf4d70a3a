"""`init`: scans for tables, and writes initial configuration files."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import get_args

from delta_maintenance.cli.arguments import Verbs, add_verb
from delta_maintenance.cli.output import print_json
from delta_maintenance.cli.scan import addresses_of, print_scan, scan
from delta_maintenance.cli.starter_policy import POLICY
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.table.commit.other_writers import OtherWriters

_AIRFLOW = """\
# Makes the Dags that maintain the tables of the policy; put this file into the Dags folder. The
# policy can also be named in Airflow's configuration, where the health page finds it too:
#
#     [delta_maintenance]
#     policy = {policy}
#
# If the policy names the connection `lake`, create it once:
#
#     airflow connections add lake --conn-type delta --conn-login KEY --conn-password SECRET
#
from delta_maintenance_airflow.dags import delta_maintenance_dags

delta_maintenance_dags(policy="{policy}")
"""
_DAGSTER = """\
# Assets, checks, a sensor and a job for the tables below; put this file into a folder of its own
# in `defs` of a Dagster project.
type: delta_maintenance_dagster.DeltaMaintenanceComponent

attributes:
  defaults:
    fsck: {{every: 7 days}}
    checkpoint: true
    compact_log: true
    clean_log: true
    optimize: true
    vacuum: {{every: 7 days}}
    approval: [vacuum]
  tables:
    - {{uri: {folder}/lake/events, key: events}}
    # Tables in an object store. Without `storage_options` of the component, credentials come from
    # the environment.
    # - {{uri: s3://lake/sales/orders, key: sales/orders, other_writers: conditional_put}}
"""
_DAGSTER_POLICY = """\
# Assets, checks, a sensor and a job for the tables of the policy; put this file into a folder of
# its own in `defs` of a Dagster project.
type: delta_maintenance_dagster.DeltaMaintenanceComponent

attributes:
  policy: {policy}
"""


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "init",
        purpose="policy",
        summary="write a policy, and files for Airflow or Dagster",
        description="Write commented files for a first setup into a folder: a policy; for "
        "Airflow a policy and a file for the Dags folder; for Dagster a component. Existing "
        "files are not changed. With addresses, find the tables there, show their state and what "
        "a first run would do, and write a policy for them. Reads logs, and changes no table.",
        json_help="print the files, and the Assessments of the tables, as one JSON document",
        example="init airflow s3://lake/sales s3://lake/ops --folder dags",
    )
    parser.add_argument("kind", choices=["policy", "airflow", "dagster"], help="the kind of setup")
    parser.add_argument(
        "addresses",
        metavar="ADDRESS",
        nargs="*",
        help="a bucket, a folder above tables, or a table, which is scanned; repeatable",
    )
    parser.add_argument(
        "--other-writers",
        choices=get_args(OtherWriters),
        help="the other writers of the tables on S3; by default, spark for tables that Delta Spark "
        "writes, after a question at a terminal",
    )
    parser.add_argument(
        "--list", metavar="FILE", help="a file with further addresses, one in each line"
    )
    parser.add_argument(
        "--folder",
        metavar="FOLDER",
        default=".",
        help="the folder for the files, by default the current one",
    )
    parser.set_defaults(run=run, table=None)


def run(arguments: argparse.Namespace) -> int:
    """Scans the addresses, writes the files, and lists them."""
    folder = Path(os.path.abspath(arguments.folder))
    addresses = addresses_of(arguments)
    scanned = scan(addresses, arguments) if addresses else None
    files = _files(arguments.kind, folder, None if scanned is None else scanned.policy)
    written = {path: _write(path, text) for path, text in files.items()}
    documents = [{"file": str(path), "written": is_written} for path, is_written in written.items()]
    if arguments.json and scanned is None:
        print_json(documents)
    elif arguments.json and scanned is not None:
        tables = [assessment.to_json() for assessment in scanned.assessments]
        print_json({"files": documents, "tables": tables})
    else:
        if scanned is not None:
            print_scan(scanned)
            print()
        for path, is_written in written.items():
            note = "" if is_written else ": exists, not changed; --folder names another folder"
            print(f"{path}{note}")
        print(_next(arguments.kind, folder))
    return 0


def _files(kind: str, folder: Path, proposed: str | None) -> dict[Path, str]:
    from delta_maintenance.policies.definition.policy import json_schema

    policy = folder / "policy.yaml"
    if kind == "dagster" and proposed is None:
        return {folder / "defs.yaml": _DAGSTER.format(folder=folder)}
    schema = json.dumps(json_schema(), separators=(",", ":")) + "\n"
    files = {
        policy: proposed or POLICY.replace("${env:PWD}", str(folder)),
        folder / "policy.schema.json": schema,
    }
    if kind == "airflow":
        files[folder / "delta_maintenance_dags.py"] = _AIRFLOW.format(policy=policy)
    if kind == "dagster":
        files[folder / "defs.yaml"] = _DAGSTER_POLICY.format(policy=policy)
    return files


def _write(path: Path, text: str) -> bool:
    """Writes a file unless it exists; returns whether it is new."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return False
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidRequestError(
            f"{path} cannot be written: {error.strerror}",
            remedy="give another folder with --folder",
        ) from error
    return True


def _next(kind: str, folder: Path) -> str:
    if kind == "policy":
        return f"Next: delta-maintenance assess {folder / 'policy.yaml'}"
    if kind == "airflow":
        return (
            "Next: copy delta_maintenance_dags.py into Airflow's Dags folder, and run\n"
            "      airflow dags unpause delta_maintenance"
        )
    return "Next: move defs.yaml into a folder of its own below defs, and run dg check defs"
