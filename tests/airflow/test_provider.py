"""The metadata of the provider in Airflow."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.sdk import BaseOperatorLink

from delta_maintenance.operations.core import BUILT_IN, find, flag_fields
from delta_maintenance_airflow import __version__, operators, sensors, triggers
from delta_maintenance_airflow.operators.descriptions import class_name
from delta_maintenance_airflow.provider_info import get_provider_info

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import operator_stubs

SCHEMAS = Path(airflow.__file__).parent


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / name).read_text())


def test_airflow_accepts_the_provider_info() -> None:
    jsonschema.validate(get_provider_info(), schema("provider_info.schema.json"))


@pytest.mark.parametrize("part", ["connection-types", "integrations", "versions"])
def test_the_stricter_schema_of_community_providers_accepts_it(part: str) -> None:
    whole = schema("provider.yaml.schema.json")
    jsonschema.validate(
        get_provider_info()[part],
        {**whole["properties"][part], "definitions": whole.get("definitions", {})},
    )


def test_every_module_and_class_it_names_exists() -> None:
    info = get_provider_info()
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    for connection in info["connection-types"]:
        module, _, name = connection["hook-class-name"].rpartition(".")
        hook = getattr(importlib.import_module(module), name)
        assert hook.conn_type == connection["connection-type"]
        assert hook.hook_name == connection["hook-name"]


def test_it_names_the_module_of_every_sensor_and_trigger() -> None:
    info = get_provider_info()
    for kind, package in (("sensors", sensors), ("triggers", triggers)):
        named = {module for entry in info[kind] for module in entry["python-modules"]}
        assert named == {getattr(package, name).__module__ for name in package.__all__}


def test_every_link_it_names_is_one() -> None:
    for link in get_provider_info()["extra-links"]:
        module, _, name = link.rpartition(".")
        assert issubclass(getattr(importlib.import_module(module), name), BaseOperatorLink)


def test_sensors_load_no_operator() -> None:
    loaded = loaded_by("delta_maintenance_airflow.sensors", "delta_maintenance_airflow.triggers")
    assert not {name for name in loaded if name.startswith("delta_maintenance_airflow.operators")}


def test_it_names_the_module_of_every_operator() -> None:
    named = {
        module for entry in get_provider_info()["operators"] for module in entry["python-modules"]
    }
    others = ("approvals", "batch_run", "manual", "policy", "scheduled")
    beside = {f"delta_maintenance_airflow.operators.{name}" for name in others}
    made = {getattr(operators, class_name(name)).__module__ for name in BUILT_IN}
    assert named == made | beside


def test_the_stub_of_the_operators_is_that_of_the_records() -> None:
    assert operator_stubs.STUB.read_text() == operator_stubs.text(), "run tools/operator_stubs.py"


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_operation_has_an_operator_named_after_it(name: str) -> None:
    kind = getattr(operators, class_name(name))
    record = find(name)
    assert kind.operation == name
    assert class_name(name) in dir(operators)
    assert {*record.subjects} <= {*kind.template_fields}
    assert ("report_uri" in kind.template_fields) == (record.report is not None)
    assert ("spark_conf" in kind.template_fields) == (record.spark is not None)
    assert ("engine" in kind.template_fields) == record.chooses_engine
    assert "--" not in kind.__doc__
    assert {word for word in ("Prints", "exit status") if word in kind.__doc__} == set()
    for field in flag_fields(record.options):
        assert f"`{field.name}`: " in kind.__doc__ or field.name in kind.template_fields
        assert (f":param {field.name}: " in kind.__doc__) == (field.name in record.subjects)


def test_an_unknown_operator_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="DeltaBakeOperator"):
        _ = operators.DeltaBakeOperator


def test_airflow_discovers_it_by_its_entry_point() -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert manager.providers["delta-maintenance"].version == __version__
    assert "delta_maintenance_airflow.hooks.delta.DeltaHook" in {
        hook["hook-class-name"]
        for provider in manager.providers.values()
        for hook in provider.data.get("connection-types", ())
    }


def test_the_provider_info_is_read_without_importing_airflow() -> None:
    assert not loaded_by("delta_maintenance_airflow.provider_info") & {"airflow", "pyarrow"}


def test_a_dag_file_loads_nothing_heavy_that_airflow_does_not_load() -> None:
    by_airflow = loaded_by(
        "airflow.sdk.bases.operator", "airflow.sdk.bases.sensor", "airflow.triggers.base"
    )
    ours = loaded_by(
        "delta_maintenance_airflow.operators.spark_base",
        "delta_maintenance_airflow.sensors",
        "delta_maintenance_airflow.hooks",
        "delta_maintenance_airflow.triggers",
    )
    heavy = {"pyarrow", "numpy", "pyspark", "fsspec", "s3fs", "botocore", "pydantic", "rich"}
    assert not (ours - by_airflow) & {*heavy, "airflow.providers.apache.spark"}
    assert {name for name in ours if name.startswith("delta_maintenance.")} == {
        "delta_maintenance.clock",
        "delta_maintenance.errors",
        "delta_maintenance.address",
        "delta_maintenance.dependencies",
        "delta_maintenance.lazy",
        "delta_maintenance.ledger",
        "delta_maintenance.ledger.one_operation",
        "delta_maintenance.operations",
        "delta_maintenance.operations.core",
        "delta_maintenance.operations.core.logged_progress",
        "delta_maintenance.operations.position",
        "delta_maintenance.redaction",
        "delta_maintenance.store_options",
    }


def test_a_dag_loads_no_more_than_the_records_of_its_operations() -> None:
    loaded = loaded_by("delta_maintenance_airflow.operators.operations")
    code = "from delta_maintenance_airflow.operators import DeltaCleanLogOperator"
    ours = {name for name in loaded_after(code) - loaded if name.startswith("delta_maintenance.")}
    assert {name.split(".")[2] for name in ours if name.count(".") > 1} <= {
        "clean_log",
        "core",
        "holds",
    }
    by_airflow = loaded_by("airflow.sdk.bases.operator", "airflow.sdk.bases.sensor")
    heavy = {"pyarrow", "numpy", "pyspark", "fsspec", "pydantic", "airflow.providers.apache.spark"}
    assert not (loaded_after(code) - by_airflow) & heavy


def test_importing_the_operators_takes_little_time() -> None:
    code = (
        "import airflow.sdk.bases.operator, airflow.sdk.bases.sensor, time\n"
        "from airflow.sdk import Asset, AssetAlias, BaseHook, BaseOperator\n"
        "start = time.process_time()\n"
        "import delta_maintenance_airflow.operators.spark_base\n"
        "print(time.process_time() - start)"
    )
    runs = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    )
    # Of this process alone, and at its best: the machine may be busy with others.
    assert min(float(run.stdout) for run in runs) < 0.1


def loaded_by(*modules: str) -> set[str]:
    """The modules that are loaded in a fresh interpreter after importing these."""
    return loaded_after(f"import {', '.join(modules)}")


def loaded_after(statement: str) -> set[str]:
    """The modules that are loaded in a fresh interpreter after a statement."""
    code = f"{statement}; import json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))
