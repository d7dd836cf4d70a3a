"""A table on S3, reached as people reach it: credentials in the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_maintenance.policies.tree_search import tables_in_first
from delta_maintenance.storage import MemoryStore, open_store
from delta_maintenance.storage.core import EntryKind, tree_of
from tests.support.emulators.s3_server import S3Server
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

ADDRESS = "s3://lake/warehouse/orders"


@pytest.fixture
def server(s3_server: S3Server) -> S3Server:
    s3_server.make_bucket("lake")
    return s3_server


@pytest.fixture(autouse=True)
def table(server: S3Server) -> str:
    builder = TableBuilder(open_store(ADDRESS, server.storage_options))
    builder.commit([protocol(), metadata(), add("a"), add("b")])
    return ADDRESS


def test_credentials_of_the_environment_are_enough(
    cli: Any, server: S3Server, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.setenv(name, server.storage_options[name])
    assert cli("checkpoint", table, "--json").document["status"] == "written"
    document = cli("inspect", table, "--json").document
    assert (document["num_files"], document["log"]["checkpoint"]["version"]) == (2, 0)
    assert len(cli("files", table).lines) == 2
    for folder, told in (
        ("s3://lake/warehouse", "the folder contains orders"),
        (f"{table}/_delta_log", f"belongs to, {table}"),
    ):
        assert cli("history", folder).err.rstrip().endswith(told)


def test_a_prefix_without_objects_is_no_such_folder(cli: Any, server: S3Server, table: str) -> None:
    options = [
        word
        for pair in server.storage_options.items()
        for word in ("--storage-option", "=".join(pair))
    ]
    for verb in ("inspect", "vacuum", "fsck"):
        absent = cli(verb, f"{table}-of-2020", *options)
        assert absent.status == 2 and "there is no such folder; check the address" in absent.err
    open_store(f"{table}-of-2020", server.storage_options).put("part.parquet", b"x")
    for verb in ("inspect", "vacuum", "fsck"):
        no_log = cli(verb, f"{table}-of-2020", *options)
        assert no_log.status == 5 and "_delta_log is missing or empty" in no_log.err


def test_a_folder_of_very_many_objects_is_searched_in_its_first_pages_only() -> None:
    def pages() -> Iterator[pa.Table]:
        yield tree_of([f"a/_delta_log/{0:020}.json"], EntryKind.FILE)
        yield tree_of(["b/part.parquet"], EntryKind.FILE)
        raise AssertionError("one more page was requested")

    class Endless(MemoryStore):
        def list_tree(self, directory: str = "", *, skip: Any = None) -> Iterator[pa.Table]:
            return pages()

    assert [*tables_in_first(Endless(), batches=2)] == ["a"]


def test_storage_options_are_passed_on(cli: Any, server: S3Server, table: str) -> None:
    options = [f"{name}={value}" for name, value in server.storage_options.items()]
    words = [word for option in options for word in ("--storage-option", option)]
    assert len(cli("history", table, "--json", *words).document) == 1
    unknown = cli("history", table, *words, "--storage-option", "password=hunter2")
    assert unknown.status == 2 and "hunter2" not in unknown.err


def test_the_log_store_on_s3_is_named_by_the_scheme_that_spark_reads(
    cli: Any, server: S3Server, table: str
) -> None:
    options = [f"--storage-option={name}={value}" for name, value in server.storage_options.items()]
    settings = cli("spark-stage", f"{table}/code", "--log-store", "--json", *options).document
    assert settings["spark.jars"].startswith(f"s3a:{table.removeprefix('s3:')}/code/")


def test_a_policy_reaches_a_bucket_by_references_to_the_environment(
    cli: Any, server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.make_bucket("policy-lake")
    for folder in ("sales/orders", "raw/events"):
        builder = TableBuilder(open_store(f"s3://policy-lake/{folder}", server.storage_options))
        builder.commit([protocol(), metadata()])
        builder.commit([add("a")])
    server.fill("policy-lake", [f"{folder}/a" for folder in ("sales/orders", "raw/events")])
    server.fill("policy-lake", (f"raw/events/part-{n}.parquet" for n in range(5)))
    for name, value in server.storage_options.items():
        monkeypatch.setenv(f"LAKE_{name}", value)
    config = tmp_path / "policy.yaml"
    options = "".join(f"      {name}: ${{env:LAKE_{name}}}\n" for name in server.storage_options)
    config.write_text(
        "version: 1\ndefaults:\n  checkpoint: {max_commits: 2}\n  vacuum: true\n"
        f"  storage:\n    options:\n{options}tables: [{{pattern: 's3://policy-lake/**'}}]\n"
    )
    server.requests.clear()
    outcome = cli("assess", config, "--json")
    assert [value["name"] for value in outcome.document] == ["raw/events", "sales/orders"]
    assert [value["status"] for value in outcome.document] == ["due", "due"]
    assert not [line for line in server.requests if "part-" in line], "no data file is read"
    assert {line.split()[0] for line in server.requests} == {"GET"}
    done = cli("run", config, "--json")
    assert done.status == 0, done.err
    assert [value["status"] for value in done.document] == ["done", "done"]
    for said in (outcome, done, cli("run", config)):
        assert "testing-secret" not in said.out + said.err


def test_a_run_names_operations_that_are_blocked_beside_delta_spark(
    cli: Any, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.storage_options.items():
        monkeypatch.setenv(name, value)
    builder = TableBuilder(open_store("s3://lake/many", server.storage_options))
    files = [add(f"{number}.parquet", size=10) for number in range(13)]
    builder.commit([protocol(), metadata(), *files])
    server.fill("lake", [f"many/{number}.parquet" for number in range(13)], b"0123456789")
    for words, status in (("spark",), "blocked"), (("conditional_put",), "planned"):
        told = cli("run", "--all-due", "s3://lake/many", "--dry-run", "--other-writers", *words)
        (line,) = [line for line in told.out.splitlines() if line.strip().startswith("optimize")]
        assert line.split()[1] == status and told.status in (0, 5)
        assert ("could overwrite the commit; give --quiet" in line) == (status == "blocked")


def test_a_scan_of_a_bucket_names_its_writers_and_no_secret(
    cli: Any, server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    builder = TableBuilder(open_store("s3://lake/other", server.storage_options))
    hostile = "delta-rs:1.0\u2028tables: []\n  - {uri: /etc}"
    builder.commit([protocol(), metadata(), {"commitInfo": {"engineInfo": hostile}}])
    options = [f"--storage-option={name}={value}" for name, value in server.storage_options.items()]
    told = cli("init", "policy", "s3://lake", *options, "--folder", tmp_path)
    assert told.status == 0, told.err
    text = (tmp_path / "policy.yaml").read_text()
    assert "# Seen: delta-rs:1.0?tables: ???  - ?uri: /etc?" in text
    assert not any(value in text for value in server.storage_options.values() if len(value) > 4)
    for name, value in server.storage_options.items():
        monkeypatch.setenv(name, value)
    assessed = cli("assess", tmp_path / "policy.yaml", "--json").document
    assert {row["uri"] for row in assessed} == {ADDRESS, "s3://lake/other"}
