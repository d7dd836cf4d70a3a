"""Tables by their names in catalogs, on the command line and in scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from delta_maintenance import DeltaTable
from delta_maintenance.cli.main import main
from delta_maintenance.errors import CatalogError, CatalogUnavailableError
from delta_maintenance.policies.discovery import discover
from tests.cli.test_policies import neglected
from tests.support.catalogs.in_memory import InMemoryCatalog, catalog_table, use_catalogs

NAME = "uc://prod.sales.orders"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[InMemoryCatalog]:
    """A catalog with two tables on disk and one that is lost, and one with one table."""
    for name in ("orders", "lines", "events"):
        neglected(tmp_path / "lake" / name)
    monkeypatch.setenv("UNITY_CATALOG_URI", "https://lake")
    monkeypatch.setenv("UNITY_CATALOG_TOKEN", "dapi-canary")
    # A catalog that is down is asked once.
    monkeypatch.setitem(discover.__kwdefaults__, "pauses", ())
    return use_catalogs(
        monkeypatch,
        {
            "https://lake": [
                catalog_table(NAME, f"{tmp_path}/lake/orders", owner="team-a"),
                catalog_table("uc://prod.sales.lines", f"file://{tmp_path}/lake/lines"),
                catalog_table("uc://prod.sales.lost", f"{tmp_path}/lake/lost"),
            ],
            "https://glue": [catalog_table("glue://raw.events", f"{tmp_path}/lake/events")],
        },
    )


@pytest.fixture
def config(tmp_path: Path, server: type[InMemoryCatalog]) -> Path:
    """A policy over three catalogs, of which one is down."""
    server.broken["https://down"] = CatalogUnavailableError("the catalog does not answer")
    path = tmp_path / "policy.yaml"
    path.write_text(
        """
version: 1
defaults: {checkpoint: {max_commits: 2}}
catalogs:
  lake: {kind: unity, address: "https://lake", catalog: prod}
  aws: {kind: glue, address: "https://glue"}
  old: {kind: hive, address: "https://down"}
tables:
- {catalog: lake.sales.*, exclude: [lake.sales.lost]}
- {catalog: aws.raw.*}
- {catalog: old.*.*}
"""
    )
    return path


@pytest.mark.parametrize("verb", ["health", "inspect", "files", "history"])
def test_verbs_that_read_take_a_name(
    verb: str, server: type[InMemoryCatalog], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, NAME]) == 0
    shown = capsys.readouterr()
    assert "dapi-canary" not in shown.out + shown.err
    if verb in ("health", "inspect"):
        assert NAME in shown.out
        assert main([verb, NAME, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["catalog_name"] == NAME


def test_an_operation_takes_a_name(
    server: type[InMemoryCatalog], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", NAME]) == 0
    assert ["catalog", "name", NAME] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    assert main(["checkpoint", NAME, "--json", "--dry-run"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["catalog_name"], document["table"]) == (NAME, f"{tmp_path}/lake/orders")


@pytest.mark.parametrize(
    ("arguments", "broken", "status", "problem"),
    [
        (["health", "uc://prod.sales.nope"], None, 3, "no table uc://prod.sales.nope"),
        (["health", NAME], CatalogError("the token is refused"), 3, "the token is refused"),
        (["health", NAME], CatalogUnavailableError("no answer"), 3, "no answer"),
        (["health", "uc://prod"], None, 2, "has an empty part, too few parts"),
        (["health", "uc://prod.sales.lost"], None, 5, "lake/lost"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    broken: CatalogError | None,
    status: int,
    problem: str,
    server: type[InMemoryCatalog],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if broken is not None:
        server.broken["https://lake"] = broken
    assert main(arguments) == status
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert problem in shown.err and "dapi-canary" not in shown.err


def test_a_policy_over_three_catalogs_maintains_two_if_the_third_is_down(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(config), "--json", "--state", str(tmp_path / "state")]) == 3
    shown = capsys.readouterr()
    results = {each["name"]: each["status"] for each in json.loads(shown.out)}
    assert results == {
        "uc://prod.sales.lines": "done",
        NAME: "done",
        "glue://raw.events": "done",
        "catalogs.old": "failed",
    }
    assert "catalogs.old: the catalog does not answer" in shown.err
    assert list((tmp_path / "lake" / "orders" / "_delta_log").glob("*5.checkpoint.parquet"))


def test_the_tables_of_a_policy_are_listed(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tables", str(config)]) == 3
    shown = capsys.readouterr()
    assert shown.out.splitlines()[3:7] == [
        NAME,
        f"    at      {tmp_path}/lake/orders",
        "    rules   catalogs.lake, lake.sales.*",
        "    owner   team-a",
    ]
    assert "catalogs.lake: passed over 1 (not in the policy), 2 (view)" in shown.err
    assert main(["tables", str(config), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert [(each["catalog_name"], each["owner"]) for each in document["tables"]] == [
        ("uc://prod.sales.lines", None),
        (NAME, "team-a"),
        ("glue://raw.events", None),
    ]
    assert document["passed_over"]["catalogs.lake"] == {"view": 2, "not in the policy": 1}
    assert [each["where"] for each in document["failures"]] == ["catalogs.old"]


def test_one_table_of_a_policy_costs_one_request(
    config: Path, server: type[InMemoryCatalog], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["assess", str(config), "--table", NAME]) == 0
    assert len(server.opened) == 1 and [str(name) for name in server.resolved] == [NAME]
    assert main(["assess", str(config), "--table", "uc://prod.sales.lost"]) == 2
    assert "does not ask for uc://prod.sales.lost" in capsys.readouterr().err


def test_a_job_of_a_named_table_carries_a_reference_and_no_token(
    server: type[InMemoryCatalog], capsys: pytest.CaptureFixture[str]
) -> None:
    name = "uc://prod.sales.vended"
    table = catalog_table(name, "s3://lake/vended", vends_credentials=True)
    server.tables["https://lake"][table.name] = table
    arguments = ["spark-spec", "vacuum", name, "--for", "livy", "--application", "s3://c/job.py"]
    assert main([*arguments, "--report", "s3://c/report.json"]) == 0
    shown = capsys.readouterr()
    assert name in shown.out and "s3://lake/vended" in shown.out
    assert "dapi-canary" not in shown.out + shown.err
    server.tables["https://lake"][table.name] = catalog_table(name, "s3://lake/vended")
    assert main([*arguments, "--report", "s3://c/report.json"]) == 0
    assert name in capsys.readouterr().out


def test_a_script_takes_a_name(server: type[InMemoryCatalog], tmp_path: Path) -> None:
    table = DeltaTable(NAME)
    assert (table.catalog_name, table.uri) == (NAME, f"{tmp_path}/lake/orders")
    assert repr(table) == f"DeltaTable({NAME!r})"
    assert table.version() == 5
    assert table.checkpoint().version == 5
    assert DeltaTable(table.uri).catalog_name is None
