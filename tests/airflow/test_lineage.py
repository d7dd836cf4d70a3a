"""OpenLineage facets of tables. The provider, which is not installed here, is simulated."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from airflow.providers.common.compat.openlineage import facet

from delta_maintenance_airflow.lineage import RUN_FACET, dataset_name
from delta_maintenance_airflow.operators import (
    DeltaCheckpointOperator,
    DeltaFsckOperator,
    DeltaVacuumOperator,
)
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from tests.support.catalogs.in_memory import catalog_table, use_catalogs
from tests.support.tables.overdue_tables import overdue_table
from tests.support.tables.table_builder import TableBuilder


@dataclass
class Dataset:
    namespace: str
    name: str
    facets: dict[str, Any]


@dataclass
class OutputDataset(Dataset):
    outputFacets: dict[str, Any]


@dataclass
class Lineage:
    inputs: list[Dataset] = field(default_factory=list)
    outputs: list[OutputDataset] = field(default_factory=list)
    run_facets: dict[str, Any] = field(default_factory=dict)


@dataclass
class Statistics:
    size: int
    fileCount: int | None


@dataclass
class Version:
    datasetVersion: str


@dataclass
class Identifier:
    namespace: str
    name: str
    type: str


@dataclass
class Symlinks:
    identifiers: list[Identifier]


class RunFacet:
    def with_additional_properties(self, **properties: Any) -> Mapping[str, Any]:
        return properties


@pytest.fixture
def openlineage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its provider and its client, as far as they are asked."""
    extractors = ModuleType("extractors")
    extractors.OperatorLineage = Lineage  # type: ignore[attr-defined]
    facet_v2 = ModuleType("facet_v2")
    facet_v2.dataset_version_dataset = ModuleType("dataset_version_dataset")  # type: ignore[attr-defined]
    facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet = Version
    facet_v2.symlinks_dataset = ModuleType("symlinks_dataset")  # type: ignore[attr-defined]
    facet_v2.symlinks_dataset.SymlinksDatasetFacet = Symlinks
    facet_v2.symlinks_dataset.Identifier = Identifier
    for name, module in {
        "airflow.providers.openlineage": ModuleType("openlineage"),
        "airflow.providers.openlineage.extractors": extractors,
        "openlineage": ModuleType("openlineage"),
        "openlineage.client": ModuleType("client"),
        "openlineage.client.facet_v2": facet_v2,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(facet, "InputDataset", Dataset)
    monkeypatch.setattr(facet, "OutputDataset", OutputDataset)
    monkeypatch.setattr(facet, "OutputStatisticsOutputDatasetFacet", Statistics)
    monkeypatch.setattr(facet, "RunFacet", RunFacet)


def told(task: DeltaMaintenanceOperator | DeltaPolicyRunOperator) -> Lineage:
    lineage = task.get_openlineage_facets_on_complete(None)
    assert isinstance(lineage, Lineage)
    return lineage


def checkpoint(table: TableBuilder, **arguments: Any) -> DeltaCheckpointOperator:
    return DeltaCheckpointOperator(task_id="t", table_uri=table.store.root, **arguments)


@pytest.mark.usefixtures("openlineage")
def test_a_task_names_its_table_at_its_start_and_the_version_at_its_end(
    neglected_table: TableBuilder, task_context: dict[str, Any]
) -> None:
    task = checkpoint(neglected_table)
    begun = OutputDataset("file", neglected_table.store.root, {}, {})
    assert task.get_openlineage_facets_on_start() == Lineage(outputs=[begun])
    outcome = task.execute(task_context)
    lineage = told(task)
    (output,) = lineage.outputs
    assert (output.namespace, output.name) == ("file", neglected_table.store.root)
    assert output.facets == {"version": Version("9")}
    assert output.outputFacets == {"outputStatistics": Statistics(outcome["bytes_written"], 1)}
    facts = lineage.run_facets[RUN_FACET]
    assert (facts["operation"], facts["status"]) == ("checkpoint", "written")
    assert "table" not in facts
    assert not lineage.inputs


@pytest.mark.usefixtures("openlineage")
@pytest.mark.parametrize("plan_only", [True, False])
def test_a_table_that_was_only_read_is_an_input(
    neglected_table: TableBuilder, task_context: dict[str, Any], plan_only: bool
) -> None:
    if not plan_only:
        checkpoint(neglected_table).execute(task_context)
    task = checkpoint(neglected_table, plan_only=plan_only)
    task.execute(task_context)
    read = Dataset("file", neglected_table.store.root, {"version": Version("9")})
    assert (told(task).inputs, told(task).outputs) == ([read], [])


@pytest.mark.usefixtures("openlineage")
def test_an_integrity_check_only_reads(
    classic_table: TableBuilder, task_context: dict[str, Any]
) -> None:
    task = DeltaFsckOperator(task_id="t", table_uri=classic_table.store.root)
    with pytest.raises(Exception, match="missing-data-file"):
        task.execute(task_context)
    assert told(task).inputs
    assert not told(task).outputs
    assert told(task).run_facets[RUN_FACET]["status"] == "corrupt"


@pytest.mark.usefixtures("openlineage")
def test_a_vacuum_has_its_last_version_and_its_deletions(
    tmp_path: Path, task_context: dict[str, Any]
) -> None:
    overdue_table(tmp_path)
    task = DeltaVacuumOperator(task_id="t", table_uri=str(tmp_path))
    outcome = task.execute(task_context)
    (output,) = told(task).outputs
    assert output.facets == {"version": Version("17")}
    # Nothing was written, and deleted files must not be added to written ones.
    assert output.outputFacets == {}
    facts = told(task).run_facets[RUN_FACET]
    assert (facts["deleted"], facts["bytes"]) == (outcome["deleted"], outcome["bytes"])


@pytest.mark.usefixtures("openlineage")
def test_a_run_of_a_policy_names_its_table(
    neglected_table: TableBuilder,
    task_context: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = tmp_path / "policy.yaml"
    rules = {"checkpoint": {"max_commits": 5}, "clean_log": False, "vacuum": False}
    policy.write_text(yaml.safe_dump({"version": 1, "defaults": rules, "tables": []}))
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))

    def run(**arguments: Any) -> DeltaPolicyRunOperator:
        table = {"uri": neglected_table.store.root}
        task = DeltaPolicyRunOperator(task_id="t", table=table, policy=str(policy), **arguments)
        task.execute(task_context)
        return task

    planned = told(run(plan_only=True))
    assert (len(planned.inputs), planned.outputs) == (1, [])
    lineage = told(run())
    (output,) = lineage.outputs
    assert output.name == neglected_table.store.root
    assert output.facets == {"version": Version("9")}
    assert output.outputFacets["outputStatistics"].fileCount == 1
    assert lineage.run_facets[RUN_FACET]["operations"] == ["checkpoint: done"]
    nothing = told(run())
    assert (len(nothing.inputs), nothing.outputs) == (1, [])


@pytest.mark.usefixtures("openlineage")
def test_a_table_given_by_name_is_reported_at_the_end_only() -> None:
    task = DeltaPolicyRunOperator(task_id="t", table={"name": "events"})
    assert task.get_openlineage_facets_on_start() is None


def test_without_the_provider_nothing_is_reported(
    neglected_table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage", None)
    task = checkpoint(neglected_table)
    assert task.get_openlineage_facets_on_start() is None
    assert task.get_openlineage_facets_on_complete(None) is None


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("s3://lake/raw/events", ("s3://lake", "raw/events")),
        ("s3a://lake/raw/events/", ("s3://lake", "raw/events")),
        ("s3://lake/a%20b", ("s3://lake", "a%20b")),
        ("s3://lake", ("s3://lake", "/")),
        ("gcs://lake/events", ("gs://lake", "events")),
        (
            "abfs://raw@lake.blob.core.windows.net/events",
            ("abfss://raw@lake.dfs.core.windows.net", "events"),
        ),
        ("file:///lake/a%20b/", ("file", "/lake/a b")),
        ("/lake/a b", ("file", "/lake/a b")),
        ("az://raw/events", None),
        ("memory://events", None),
        ("s3://key:secret@lake/events", None),
        ("s3://lake/events?secret", None),
        ("abfss://raw/events", None),
    ],
)
def test_addresses_are_named_as_openlineage_names_them(
    address: str, named: tuple[str, str] | None
) -> None:
    assert dataset_name(address) == named


@pytest.mark.usefixtures("openlineage")
def test_a_named_table_is_a_symbolic_link_of_its_data_set(
    neglected_table: TableBuilder, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "uc://prod.sales.a%2Eb"
    use_catalogs(monkeypatch, {"https://uc": [catalog_table(name, neglected_table.store.root)]})
    monkeypatch.setenv("UNITY_CATALOG_URI", "https://uc")
    task = DeltaCheckpointOperator(task_id="t", table_uri=name)
    task.execute(task_context)
    (output,) = told(task).outputs
    assert (output.namespace, output.name) == ("file", neglected_table.store.root)
    assert output.facets["symlinks"] == Symlinks([Identifier("uc", "prod.sales.a%2Eb", "TABLE")])
