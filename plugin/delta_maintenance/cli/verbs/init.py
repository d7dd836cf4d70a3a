"""`init`: writes initial configuration files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from delta_maintenance.cli.arguments import Verbs, add_verb
from delta_maintenance.cli.output import print_json
from delta_maintenance.cli.starter_policy import POLICY
from delta_maintenance.errors import InvalidRequestError

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


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "init",
        summary="write a policy, or the files that connect it to Airflow or Dagster",
        description="Write commented files for a first setup into a folder: a policy; for "
        "Airflow a policy\nand a file for the Dags folder; for Dagster a component. Existing "
        "files are not changed.",
        json_help="print the files as one JSON document",
        example="init airflow --folder dags",
        opens_stores=False,
    )
    parser.add_argument("kind", choices=["policy", "airflow", "dagster"], help="the kind of setup")
    parser.add_argument(
        "--folder",
        metavar="FOLDER",
        default=".",
        help="the folder for the files, by default the current one",
    )
    parser.set_defaults(run=run, table=None)


def run(arguments: argparse.Namespace) -> None:
    """Writes the files, and lists them."""
    folder = Path(os.path.abspath(arguments.folder))
    files = _files(arguments.kind, folder)
    written = {path: _write(path, text) for path, text in files.items()}
    if arguments.json:
        print_json([{"file": str(path), "written": new} for path, new in written.items()])
        return
    for path, new in written.items():
        print(f"{path}{'' if new else ': exists, not changed'}")
    print(_next(arguments.kind, folder))


def _files(kind: str, folder: Path) -> dict[Path, str]:
    if kind == "dagster":
        return {folder / "defs.yaml": _DAGSTER.format(folder=folder)}
    policy = folder / "policy.yaml"
    files = {policy: POLICY.replace("${env:PWD}", str(folder))}
    if kind == "airflow":
        files[folder / "delta_maintenance_dags.py"] = _AIRFLOW.format(policy=policy)
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
