"""A policy over servers of catalogs: what is maintained, at what cost, and what is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from delta_maintenance import clock
from delta_maintenance.catalogs.http import client
from delta_maintenance.cli.main import main
from delta_maintenance.policies.discovery import discover
from tests.cli.test_policies import neglected
from tests.support.catalogs.catalog_server import CatalogServer, Entry
from tests.support.catalogs.generic_table_servers import LakekeeperServer, PolarisServer
from tests.support.catalogs.names import AWKWARD
from tests.support.catalogs.unity_server import UnityServer
from tests.support.operations.vacuum_cases import removed
from tests.support.servers.loopback import Reply, Request
from tests.support.tables.actions import add as delta_add
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.vacuum_tables import Folder

pytestmark = pytest.mark.server

SERVERS = {"unity": UnityServer, "lakekeeper": LakekeeperServer, "polaris": PolarisServer}
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, CatalogServer]]:
    """Three servers with an empty schema, and clients that do not pause."""
    monkeypatch.setattr(client, "PAUSES", ())
    monkeypatch.setitem(discover.__kwdefaults__, "pauses", ())
    with ExitStack() as running:
        made = {kind: running.enter_context(made().running()) for kind, made in SERVERS.items()}
        for server in made.values():
            server.token = "dapi-right"
            server.namespaces["prod", "sales"] = {}
        monkeypatch.setenv("LAKE_TOKEN", "dapi-right")
        yield made


@pytest.fixture
def config(tmp_path: Path, servers: dict[str, CatalogServer]) -> Path:
    """A policy over them."""
    path = tmp_path / "policy.yaml"
    catalogs = {
        kind: {
            "kind": kind,
            "address": server.settings().address,
            "catalog": "prod",
            "options": {"token": "${env:LAKE_TOKEN}", "vend": False},
        }
        for kind, server in servers.items()
    }
    document = {
        "version": 1,
        "defaults": {"checkpoint": {"max_commits": 2}},
        "catalogs": catalogs,
        "tables": [{"catalog": f"{kind}.**"} for kind in catalogs],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def add(server: CatalogServer, folder: Path, name: str) -> str:
    """A neglected table on disk, in the schema `sales` of a server. Returns its name."""
    neglected(folder)
    entry = Entry(location=f"file://{folder}")
    return str(server.add("prod", "sales", name, entry=entry))


def test_a_server_that_is_down_hides_no_other(
    config: Path,
    servers: dict[str, CatalogServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [add(servers[kind], tmp_path / kind, "orders") for kind in ("unity", "lakekeeper")]
    document = yaml.safe_load(config.read_text())
    document["catalogs"]["polaris"]["address"] = "http://127.0.0.1:9"
    config.write_text(yaml.safe_dump(document))
    assert main(["run", str(config), "--json"]) == 3
    shown = capsys.readouterr()
    assert {each["name"]: each["status"] for each in json.loads(shown.out)} == {
        **dict.fromkeys(names, "done"),
        "catalogs.polaris": "failed",
    }
    assert shown.err.count("\n") == 1 and "catalogs.polaris: " in shown.err


def test_a_wrong_token_is_one_line_and_hides_no_other(
    config: Path,
    servers: dict[str, CatalogServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = add(servers["unity"], tmp_path / "orders", "orders")
    monkeypatch.setenv("OTHER_TOKEN", "dapi-canary")
    document = yaml.safe_load(config.read_text())
    document["catalogs"]["lakekeeper"]["options"]["token"] = "${env:OTHER_TOKEN}"
    config.write_text(yaml.safe_dump(document))
    assert main(["tables", str(config), "--json"]) == 3
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert [each["name"] for each in document["tables"]] == [name]
    assert [each["where"] for each in document["failures"]] == ["catalogs.lakekeeper"]
    assert "dapi-canary" not in shown.out + shown.err


def test_awkward_names_are_found_and_can_be_given(
    config: Path,
    servers: dict[str, CatalogServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    neglected(tmp_path / "orders")
    names = []
    for kind, server in servers.items():
        for number, part in enumerate(AWKWARD):
            entry = Entry(location=f"s3://lake/{kind}/{number}")
            names.append(str(server.add("prod", "sales", part, entry=entry)))
    assert main(["tables", str(config), "--json"]) == 0
    found = [each["name"] for each in json.loads(capsys.readouterr().out)["tables"]]
    assert sorted(found) == sorted(names)
    for name in names:
        assert main(["tables", str(config), "--table", name, "--json"]) == 0
        (table,) = json.loads(capsys.readouterr().out)["tables"]
        assert table["name"] == table["catalog_name"] == name


def test_tables_that_are_known_are_not_loaded_again(
    config: Path,
    servers: dict[str, CatalogServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lakekeeper = servers["lakekeeper"]
    for number in range(20):
        entry = Entry(location=f"s3://lake/{number}")
        lakekeeper.add("prod", "sales", f"t{number}", entry=entry)
    words = ["tables", str(config), "--state", str(tmp_path / "state")]
    assert main(words) == 0
    first = len(lakekeeper.requests)
    assert main(words) == 0
    assert len(lakekeeper.requests) - first <= first - 20
    capsys.readouterr()


HOSTILE = {
    "a newline": "a\nb",
    "an escape": "\x1b[31mred\x1b]0;title\x07",
    "dots": "..",
    "a climb": "../../etc/passwd",
    "255": "n" * 255,
    "right to left": "\u202egnp.exe",
    "markup": "<script>alert(1)</script>[red]",
}


def test_hostile_names_stay_in_their_place(
    config: Path, servers: dict[str, CatalogServer], tmp_path: Path, capsys: Capture
) -> None:
    lake, state = tmp_path / "lake", tmp_path / "a" / "state"
    for number, text in enumerate(HOSTILE.values()):
        neglected(lake / f"{number}")
        location = f"file://{lake}/{number}"
        entry = Entry(location=location, owner=text, comment=text)
        servers["unity"].add("prod", "sales", text, entry=entry)
    for kind in ("lakekeeper", "polaris"):
        # A catalog that lists nothing leaves the search incomplete.
        add(servers[kind], tmp_path / kind, "orders")
    page, unknown = tmp_path / "page.html", lake / "<img src=x>\u202e"
    neglected(unknown)
    words = [str(config), "--state", str(state)]
    assert main(["tables", *words]) == 0
    assert main(["run", *words]) == 0
    table = capsys.readouterr().out
    # A long name leaves space for what is said of each table.
    done = [line for line in table.splitlines() if line.rstrip().endswith("checkpoint")]
    assert len(done) == len(HOSTILE) + 2
    assert main(["orphans", str(config), "--under", str(lake), "--html", str(page)]) == 0
    shown = capsys.readouterr()
    for said in (table, shown.out, shown.err, page.read_text()):
        assert all(char == "\n" or char.isprintable() for char in said)
    assert "<img" not in page.read_text() and "&lt;img" in page.read_text()
    files = [path for path in state.rglob("*") if path.is_file()]
    assert {path.parent for path in files} == {state}
    # The tables, the catalogs, and the patterns.
    assert len(files) == len(HOSTILE) + 2 + len(servers) + 1
    assert all(len(path.name.encode()) <= 143 for path in files)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["state"]


def test_a_location_that_is_written_in_another_way_is_one_table(
    config: Path, servers: dict[str, CatalogServer], tmp_path: Path, capsys: Capture
) -> None:
    add(servers["unity"], tmp_path / "orders", "a")
    for name, path in (("b", f"{tmp_path}/x/../orders"), ("c", f"{tmp_path}//orders/./")):
        servers["unity"].add("prod", "sales", name, entry=Entry(location=f"file://{path}"))
    assert main(["tables", str(config), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["tables"]] == ["uc://prod.sales.a"]
    assert len(document["duplicates"]) == 2


def test_a_table_within_another_one_is_not_vacuumed_with_it(
    config: Path, servers: dict[str, CatalogServer], tmp_path: Path, capsys: Capture
) -> None:
    outer = add(servers["unity"], tmp_path / "orders", "a")
    inner = add(servers["unity"], tmp_path / "orders" / "inner", "b")
    files = sorted(path for path in (tmp_path / "orders").rglob("*.parquet"))
    document = yaml.safe_load(config.read_text())
    document["defaults"] = {"vacuum": {"every": "1 day"}}
    config.write_text(yaml.safe_dump(document))
    assert main(["run", str(config), "--json"]) != 0
    results = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert results[outer]["status"] == "failed" and "another table" in results[outer]["problem"]
    assert results[inner]["status"] == "done"
    gone = {path for path in files if not path.exists()}
    assert gone == {tmp_path / "orders" / "inner" / "0.parquet"}


def test_a_text_that_utf_8_cannot_represent_hides_no_table(
    config: Path, servers: dict[str, CatalogServer], tmp_path: Path, capsys: Capture
) -> None:
    server = servers["unity"]
    names = [add(server, tmp_path / name, name) for name in ("a", "SURROGATE")]
    server.namespaces["prod", "sales"]["a"] = replace(
        server.namespaces["prod", "sales"]["a"], owner="SURROGATE"
    )

    def answer(_: int, request: Request) -> Reply:
        reply = server._answer(request)
        return replace(reply, body=reply.body.replace(b'"SURROGATE"', rb'"\ud800"'))

    server.intercept = answer
    assert main(["run", str(config), "--state", str(tmp_path / "state"), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [each["status"] for each in results] == ["done"] * len(names)


def test_a_table_that_the_catalog_does_not_have_keeps_no_other_from_its_vacuum(
    config: Path, servers: dict[str, CatalogServer], tmp_path: Path, capsys: Capture
) -> None:
    name = add(servers["unity"], tmp_path / "orders", "orders")
    document = yaml.safe_load(config.read_text())
    document["defaults"] = {"vacuum": {"every": "1 day"}}
    document["tables"].append({"catalog": "unity.sales.order", "vacuum": False})
    config.write_text(yaml.safe_dump(document))
    assert main(["run", str(config), "--json"]) == 3
    shown = capsys.readouterr()
    assert {each["name"]: each["status"] for each in json.loads(shown.out)} == {
        name: "done",
        "uc://prod.sales.order": "failed",
    }
    *empty, line = shown.err.splitlines()
    assert "correct the name in the policy" in line
    kinds = [f"no table matches {kind}.**" for kind in ("lakekeeper", "polaris")]
    assert [text.partition("warning: ")[2] for text in empty] == kinds
    for kind in ("lakekeeper", "polaris"):
        add(servers[kind], tmp_path / kind, "orders")
    assert main(["orphans", str(config), "--under", str(tmp_path)]) == 0
    capsys.readouterr()


def test_a_table_that_its_catalog_calls_a_clone_stops_vacuums_until_it_was_read(
    config: Path,
    servers: dict[str, CatalogServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = yaml.safe_load(config.read_text())
    document["defaults"] = {"vacuum": True, "limits": {"max_deleted_share": 1}}

    def problem_of_orders(case: str, kind: str, *, read_before: bool = False) -> str | None:
        config.write_text(yaml.safe_dump(document))
        tables = {}
        for name in ("orders", "copy"):
            folder = tmp_path / case / name
            tables[name] = Folder(folder, now=clock.now(), first=[protocol(), metadata()])
            tables[name].log(delta_add("x.parquet"))
            tables[name].log(removed("x.parquet", 90))
            entry = Entry(location=f"file://{folder}", type=kind if name == "copy" else "EXTERNAL")
            servers["unity"].add("prod", "sales", name, entry=entry)
        command = ["run", str(config), "--json", "--state", str(tmp_path / case / "state")]
        if read_before:
            main(command)
            for outcome in (tmp_path / case / "state").glob("*.json"):
                outcome.unlink()
        log = tmp_path / case / "copy/_delta_log"
        if case == "truncated":
            (log / f"{1:020}.json").write_bytes(b'{"add":')
        elif read_before:
            log.rename(tmp_path / case / "elsewhere")
            log.symlink_to(tmp_path / case / "elsewhere")
        else:
            (log / f"{1:020}.json").unlink()
        tables["orders"].file("x.parquet")
        capsys.readouterr()
        main(command)
        results = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
        problem = results["uc://prod.sales.orders"]["problem"]
        assert (tmp_path / case / "orders/x.parquet").exists() == (problem is not None)
        return None if problem is None else str(problem)

    for case in ("missing", "truncated"):
        kind = "MANAGED_SHALLOW_CLONE" if case == "missing" else "EXTERNAL_SHALLOW_CLONE"
        refused = problem_of_orders(case, kind)
        assert refused is not None and "calls the table" in refused
        assert "set clones: {unreadable: ignore}" in refused
    assert problem_of_orders("ordinary", "EXTERNAL") is None
    assert problem_of_orders("read before", kind, read_before=True) is None
    document["defaults"]["clones"] = {"unreadable": "ignore"}
    assert problem_of_orders("ignored", kind) is None
