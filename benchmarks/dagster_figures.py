"""What Dagster's package costs its users: its import, and a tick of its sensor over many tables.

No peer can do either. The subjects run as processes of their own: ``python -m
benchmarks.dagster_figures SUBJECT ...`` prints one JSON document.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import run_process
from benchmarks.outcome import Figure, Outcome, Row, Settings

_TABLES = 200
_COMMITS = 20
_MOVED = 20


def package_import(settings: Settings) -> Outcome:
    """The import of the package, after Dagster's own."""
    runs = [run_process(_subject("import")) for _ in range(settings.runs + 1)][1:]
    added = [run.report["added_ms"] for run in runs]
    used = [run.report["used_ms"] for run in runs]
    heavy = runs[0].report["heavy"]
    return Outcome(
        rows=[
            Row(name="added time", unit="ms", ours=added, peer=None, target="100 ms"),
            Row(name="with the schema of its component", unit="ms", ours=used, peer=None),
        ],
        notes=[f"of pyarrow and pyspark it loads {' and '.join(heavy) if heavy else 'neither'}"],
    )


def sensor_tick(settings: Settings) -> Outcome:
    """A tick of the commit sensor, where no table moved and where some did."""
    lake = settings.work / "dagster-lake"
    if not lake.exists():
        _make_tables(lake)
    runs = [run_process(_subject("ticks", lake)) for _ in range(settings.runs)]
    named = {"idle": "no table moved", "moved": f"{_MOVED} moved", "first": "first look"}
    return Outcome(
        rows=[
            Row(
                name=f"{_TABLES} tables, {said}",
                unit="s",
                ours=[run.report[f"{name}_seconds"] for run in runs],
                peer=None,
                target="2 s",
            )
            for name, said in named.items()
        ]
    )


FIGURES: Mapping[str, Figure] = {
    "dagster-import": Figure(
        title="`import delta_maintenance_dagster`, after Dagster's own import",
        needs="import delta_maintenance_dagster",
        measure=package_import,
    ),
    "dagster-sensor": Figure(
        title=f"A tick of Dagster's commit sensor over {_TABLES} tables on local disk",
        needs="import delta_maintenance_dagster",
        measure=sensor_tick,
    ),
}


def _import() -> dict[str, object]:
    import dagster  # noqa: F401

    before = set(sys.modules)
    started = time.perf_counter()
    import delta_maintenance_dagster

    added_ms = (time.perf_counter() - started) * 1000
    # What a location with a component loads besides.
    delta_maintenance_dagster.DeltaMaintenanceComponent.model()
    used_ms = (time.perf_counter() - started) * 1000
    heavy = {"pyarrow", "pyspark"} & (set(sys.modules) - before)
    return {"added_ms": added_ms, "used_ms": used_ms, "heavy": sorted(heavy)}


def _ticks(lake: str) -> dict[str, object]:
    import dagster as dg
    from dagster.components.testing.utils import component_defs

    from delta_maintenance_dagster import DeltaMaintenanceComponent

    folders = sorted(Path(lake).iterdir())
    component = DeltaMaintenanceComponent.from_attributes_dict(
        attributes={
            "tables": [{"uri": str(folder), "name": f"lake/{folder.name}"} for folder in folders]
        }
    )
    definitions = component_defs(component=component)
    sensor = definitions.resolve_sensor_def("delta_maintenance_commits")
    cursor = None
    seconds: dict[str, object] = {}
    with dg.DagsterInstance.ephemeral() as instance:
        for name, moved in (("first", 0), ("idle", 0), ("moved", _MOVED)):
            for folder in folders[:moved]:
                _commit(folder, len(list((folder / "_delta_log").iterdir())))
            context = dg.build_sensor_context(
                instance=instance, definitions=definitions, cursor=cursor
            )
            started = time.perf_counter()
            tick = sensor.evaluate_tick(context)
            seconds[f"{name}_seconds"] = time.perf_counter() - started
            cursor = tick.cursor
            wanted = len(folders) if name == "first" else moved
            if len(tick.run_requests or ()) != wanted:
                sys.exit(f"{name}: {len(tick.run_requests or ())} runs requested, not {wanted}")
    return seconds


def _make_tables(lake: Path) -> None:
    from tests.support.tables.actions import metadata, protocol

    for number in range(_TABLES):
        folder = lake / f"table-{number:03}"
        (folder / "_delta_log").mkdir(parents=True)
        lines = [json.dumps(action) for action in (protocol(), metadata())]
        (folder / "_delta_log" / f"{0:020}.json").write_text("\n".join(lines) + "\n")
        for version in range(1, _COMMITS):
            _commit(folder, version)


def _commit(folder: Path, version: int) -> None:
    from tests.support.tables.actions import add

    line = json.dumps(add(f"part-{version:05}.parquet"))
    (folder / "_delta_log" / f"{version:020}.json").write_text(f"{line}\n")


def _subject(name: str, *args: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.dagster_figures", name, *map(str, args)]


if __name__ == "__main__":
    print(json.dumps({"import": _import, "ticks": _ticks}[sys.argv[1]](*sys.argv[2:])))
