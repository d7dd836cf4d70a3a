"""The policy for the tables of the demo, and a run of its Dag."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from telling import timed
from throwaway_airflow import Airflow

DAG_ID = "delta_maintenance"
ACTIONS_PER_SIDECAR = 4_000


def with_policy(airflow: Airflow, *, telemetry: Path, uploads: Path, engine: str) -> Airflow:
    """The same Airflow with a policy for both tables, and a folder for assessments."""
    policy = {
        "version": 1,
        "defaults": {
            "spark": {"connection": "spark_default"},
            "fsck": {"every": "30 days"},
            "vacuum": {"every": "7 days"},
            "approval": ["vacuum"],
        },
        "tables": [
            {
                "name": telemetry.name,
                "uri": os.fspath(telemetry),
                "engine": {"prefer": engine},
                "checkpoint": {"max_commits": 100, "actions_per_sidecar": ACTIONS_PER_SIDECAR},
            },
            {
                "name": uploads.name,
                "uri": os.fspath(uploads),
                "engine": {"prefer": "local"},
                "optimize": {"min_files_saved": 10},
            },
        ],
    }
    airflow.home.mkdir(parents=True, exist_ok=True)
    file = airflow.home / "policy.yaml"
    # JSON is YAML.
    file.write_text(json.dumps(policy, indent=2))
    return replace(
        airflow,
        settings={
            "AIRFLOW__DELTA_MAINTENANCE__POLICY": os.fspath(file),
            "AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS": os.fspath(airflow.home / "assessments"),
        },
    )


def run_policy_dag(airflow: Airflow) -> None:
    """Runs the Dag with `airflow dags test`: a real DagRun with task instances and XComs, in a
    database of its own. It needs no scheduler, so the demo waits for none.
    """
    with timed("the DagRun: {seconds:.0f} s"):
        airflow.run("dags", "test", DAG_ID)
