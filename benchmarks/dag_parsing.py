"""What our Dags cost a Dag processor: parsing them all with a policy of many tables.

The subject runs as a process of its own: ``python -m benchmarks.dag_parsing FOLDER`` prints one
JSON document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.measure import ROOT, Spread, run_pairs, run_process
from benchmarks.outcome import Figure, Outcome, Row, Settings, airflow_home, time_and_memory

_TABLES = 500
_TRIVIAL_DAG = """\
from airflow.sdk import DAG, task

with DAG(dag_id="trivial"):

    @task
    def nothing() -> None: ...

    nothing()
"""


def dag_parsing(settings: Settings) -> Outcome:
    """Parsing and serializing all Dags of dags/, against a folder with one trivial Dag."""
    trivial = settings.work / "trivial-dags"
    trivial.mkdir(exist_ok=True)
    (trivial / "trivial.py").write_text(_TRIVIAL_DAG)
    policy = settings.work / "policy-of-many-tables.yaml"
    policy.write_text(_policy())
    env = {
        **airflow_home(settings),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # It would stand before the report.
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "AIRFLOW__DELTA_MAINTENANCE__POLICY": str(policy),
    }
    ours_folder = ROOT / "dags"
    # Neither side pays for the first start of Airflow, which writes its configuration.
    run_process(_subject(ours_folder), env=env)
    ours, peer = run_pairs(
        partial(run_process, _subject(ours_folder), env=env),
        partial(run_process, _subject(trivial), env=env),
        runs=settings.runs,
        label="dag-parsing",
    )
    added = [a.seconds - b.seconds for a, b in zip(ours, peer, strict=True)]
    cpu = Spread.of([a.cpu_seconds - b.cpu_seconds for a, b in zip(ours, peer, strict=True)])
    found = ours[0].report
    heavy = [name for name in found["heavy"] if name not in peer[0].report["heavy"]]
    notes = [
        f"{found['dags']} Dags, {found['watched']} watched tables; "
        f"{cpu.median:.2f} s of CPU over the peer's",
        f"of pyarrow, fsspec and s3fs it loads {_listed(heavy)} that the peer does not; "
        f"hosts asked for: {_listed(found['hosts'])}",
    ]
    if found["watched"] != _TABLES:
        notes.append(f"WRONG: {_TABLES} tables are to be watched")
    return Outcome(
        rows=[
            Row(name="over the peer's", unit="s", ours=added, peer=None, target="2 s"),
            *time_and_memory(ours, peer, prefix="", targets=("", "")),
        ],
        notes=notes,
    )


FIGURES: Mapping[str, Figure] = {
    "dag-parsing": Figure(
        title=f"Parsing our Dags with a policy of {_TABLES} tables, against one trivial Dag",
        needs="import delta_maintenance_airflow.operators",
        measure=dag_parsing,
    )
}


def _parse(folder: str) -> dict[str, object]:
    hosts: set[str] = set()

    def heard(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo"):
            hosts.add(str(arguments[0] if event == "socket.getaddrinfo" else arguments[1]))

    # Nothing that opens a table over a network gets past this.
    sys.addaudithook(heard)
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    bag = DagBag(dag_folder=folder)
    if bag.import_errors:
        sys.exit(str(bag.import_errors))
    watched = 0
    for dag in bag.dags.values():
        # As the Dag processor does with whatever it has parsed.
        DagSerialization.to_dict(dag)
        watched += len(getattr(dag.timetable.asset_condition, "objects", ()))
    heavy = {"pyarrow", "fsspec", "s3fs"} & set(sys.modules)
    return {
        "dags": len(bag.dags),
        "watched": watched,
        "heavy": sorted(heavy),
        "hosts": sorted(hosts),
    }


def _policy() -> str:
    tables = [
        {"name": f"lake/table-{number:03}", "uri": f"s3://lake.invalid/table-{number:03}"}
        for number in range(_TABLES)
    ]
    rules = {"checkpoint": {"max_commits": 100}, "vacuum": {"every": "7 days"}}
    # JSON is YAML, too.
    return json.dumps({"version": 1, "defaults": rules, "tables": tables}, indent=1)


def _listed(names: list[str]) -> str:
    return " and ".join(names) or "none"


def _subject(folder: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.dag_parsing", str(folder)]


if __name__ == "__main__":
    print(json.dumps(_parse(sys.argv[1])))
