"""docker-compose.yaml, as far as it can be checked without Docker."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.policies.definition import load_policy

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_SHOT = {name for name, service in SERVICES.items() if service.get("restart") == "no"}
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()

# A tag that names one release: `16.10-bookworm` does, `latest`, `16` and no tag at all don't.
PINNED = re.compile(r"[^:]+:\d+\.\d+[\w.-]*")


def constraint(package: str) -> str:
    """The version of a package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (version,) = [line.partition("==")[2] for line in lines if line.startswith(f"{package}==")]
    return version


@pytest.mark.parametrize("name", SERVICES)
def test_image_is_pinned_or_built_here(name: str) -> None:
    service = SERVICES[name]
    if build := service.get("build"):
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()
    else:
        assert PINNED.fullmatch(service["image"]), service["image"]


def test_built_image_is_pinned_throughout() -> None:
    (base,) = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert PINNED.fullmatch(base)
    assert "--constraint /src/constraints.txt" in DOCKERFILE
    python = re.match(r"python:(\d+\.\d+)\.", base)
    assert python is not None
    assert f"on Python {python[1]}." in (ROOT / "constraints.txt").read_text()
    assert f"/python{python[1]}/site-packages/pyspark" in DOCKERFILE


def test_every_image_of_docker_hub_has_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import containers
    import pythons
    import stand_in_images

    found = containers.images()
    assert len(found) == 3
    for image in found:
        assert stand_in_images.dockerfile(image).is_file(), image
    (python,) = [image for image in found if image.startswith("python:")]
    version = python.removeprefix("python:").rpartition(".")[0]
    assert version in pythons.EMBEDDED


def test_the_image_has_what_builds_the_distribution() -> None:
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    assert hatch["metadata"]["hooks"]["custom"]["path"] in sum(copied, [])


def test_files_that_the_image_copies_pass_its_ignore_file() -> None:
    ignore = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
            assert f"!{name}" in ignore, name


@pytest.mark.parametrize("name", sorted(set(SERVICES) - ONE_SHOT))
def test_running_service_has_a_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)


@pytest.mark.parametrize("name", SERVICES)
def test_services_wait_for_what_they_need(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        finished = needed in ONE_SHOT
        expected = "service_completed_successfully" if finished else "service_healthy"
        assert how["condition"] == expected, needed


@pytest.mark.parametrize("name", SERVICES)
def test_no_source_root_is_mounted_and_no_plugins_folder_exists(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, target = volume.split(":")[:2]
        assert source in ("./dags", "./docker") or not source.startswith(".")
        assert "plugin" not in target
    assert "AIRFLOW__CORE__PLUGINS_FOLDER" not in SERVICES[name].get("environment", {})


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_for_this_machine_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_every_user_of_the_object_store_has_its_keys() -> None:
    store = SERVICES["s3"]["environment"]
    for name in ("airflow-scheduler", "airflow-triggerer", "spark-worker", "s3-init"):
        environment = SERVICES[name]["environment"]
        assert {key: environment[key] for key in store} == store
        assert environment["AWS_ENDPOINT_URL"] == "http://s3:8333"


@pytest.mark.parametrize("part", ["scheduler", "dag-processor", "triggerer", "api-server"])
def test_every_part_of_airflow_reads_the_policy_and_finds_the_assessments(part: str) -> None:
    service = SERVICES[f"airflow-{part}"]
    assert service["command"] == f"airflow {part}"
    policy = service["environment"]["AIRFLOW__DELTA_MAINTENANCE__POLICY"]
    assert policy == "/opt/airflow/docker/policy.yaml"
    assert "./docker:/opt/airflow/docker:ro" in service["volumes"]
    # In the bucket that s3-init creates, outside the search for tables.
    assessments = service["environment"]["AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS"]
    assert assessments.startswith("s3://tables/_")


def test_policy_covers_the_bucket_and_names_the_stacks_own_cluster() -> None:
    policy = load_policy(str(ROOT / "docker" / "policy.yaml"))
    assert "makedirs('tables'" in SERVICES["s3-init"]["command"][2]
    (found,) = policy.patterns
    assert found.pattern == "s3://tables/**"
    rules = policy.table_of(found, "s3://tables/events").rules
    assert rules.other_writers == "conditional_put"
    assert "vacuum" in rules.approval
    environment = SERVICES["airflow-scheduler"]["environment"]
    connection = environment[f"AIRFLOW_CONN_{str(rules.spark.connection).upper()}"]
    assert json.loads(connection)["conn_type"] == "spark"


@pytest.mark.process
def test_file_follows_the_schema_of_compose(tmp_path: Path) -> None:
    def checked(file: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "check_jsonschema"]
        command += ["--builtin-schema", "vendor.compose-spec", str(file)]
        return subprocess.run(command, capture_output=True, text=True)

    found = checked(ROOT / "docker-compose.yaml")
    assert found.returncode == 0, found.stdout
    wrong = tmp_path / "docker-compose.yaml"
    wrong.write_text((ROOT / "docker-compose.yaml").read_text().replace("volumes:", "volume:"))
    assert checked(wrong).returncode == 1


def test_all_parts_of_airflow_share_their_secrets() -> None:
    parts = [SERVICES[name] for name in SERVICES if name.startswith("airflow-")]
    assert len(parts) == 5
    for name in ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET"):
        assert len({part["environment"][name] for part in parts}) == 1
    key = parts[0]["environment"]["AIRFLOW__CORE__FERNET_KEY"]
    assert len(base64.urlsafe_b64decode(key)) == 32


def test_cluster_has_two_workers() -> None:
    assert SERVICES["spark-worker"]["deploy"]["replicas"] == 2


def test_both_names_of_pyspark_have_one_version() -> None:
    """They contain the same files, and the package installed last overwrites the other."""
    assert constraint("pyspark") == constraint("pyspark-client")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["airflow-spark"]
    assert f"pyspark=={constraint('pyspark')}" in extra
    assert f"pyspark-client=={constraint('pyspark-client')}" in extra


def test_both_distributions_of_pyspark_contain_the_same_files() -> None:
    """With one version, it does not matter which of them is installed last."""
    found = {}
    for name in ("pyspark", "pyspark-client"):
        try:
            files = metadata.distribution(name).files or ()
        except metadata.PackageNotFoundError:
            pytest.skip(f"NO SPARK PROVIDER: {name} is not installed")
        found[name] = {str(file): file.hash.value for file in files if file.hash is not None}
    full, client = found.values()
    shared = full.keys() & client.keys()
    assert len(shared) > 100
    assert {path for path in shared if full[path] != client[path]} == set()
