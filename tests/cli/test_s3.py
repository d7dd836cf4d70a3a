"""A table on S3, reached as people reach it: credentials in the environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from delta_maintenance.storage import open_store
from delta_maintenance.testing.actions import add, metadata, protocol
from delta_maintenance.testing.s3_server import S3Server, serve_s3
from delta_maintenance.testing.table_builder import TableBuilder

ADDRESS = "s3://lake/warehouse/orders"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3() as server:
        server.make_bucket("lake")
        yield server


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


def test_storage_options_are_passed_on(cli: Any, server: S3Server, table: str) -> None:
    options = [f"{name}={value}" for name, value in server.storage_options.items()]
    words = [word for option in options for word in ("--storage-option", option)]
    assert len(cli("history", table, "--json", *words).document) == 1
    unknown = cli("history", table, *words, "--storage-option", "password=hunter2")
    assert unknown.status == 2 and "hunter2" not in unknown.err
