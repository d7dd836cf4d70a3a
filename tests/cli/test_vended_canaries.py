"""No token of a catalog and no vended credential appears in what a command leaves behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from delta_maintenance.catalogs import source_of
from delta_maintenance.cli.main import main
from delta_maintenance.storage import open_store
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.hostile.exposure import watched
from tests.support.rewrites.rewritten_tables import Rewritten
from tests.support.servers.unity_delta import TOKEN, UnityServer, UnityTable, serve_unity
from tests.support.suite.play import PLAY
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import log_text

pytestmark = pytest.mark.server

_NAME = "uc://main.s.t"


@pytest.fixture
def unity() -> Iterator[UnityServer]:
    with serve_unity() as server:
        yield server


@pytest.fixture
def options(
    unity: UnityServer, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The options of a command for a table on S3 whose server accepts vended keys only."""
    unity.add("main.s.t", UnityTable(location=f"s3://{s3_bucket}/t"))
    monkeypatch.setenv("UNITY_CATALOG_URI", unity.url)
    monkeypatch.setenv("UNITY_CATALOG_TOKEN", TOKEN)
    words = []
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        words += ["--storage-option", f"{name}={s3_server.storage_options[name]}"]
    return words


def _echo(application: Application) -> Application:
    """A proxy that refuses everything and repeats what it was sent."""

    def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
        sent = [environ[f"HTTP_{name}"] for name in ("X_AMZ_SECURITY_TOKEN", "AUTHORIZATION")]
        start("403 Forbidden", [("Content-Type", "application/xml")])
        return [f"<Error><Code>No</Code><Message>{sent}</Message></Error>".encode()]

    return answer


def test_ten_thousand_lines_contain_no_canary(
    unity: UnityServer,
    options: list[str],
    s3_server: S3Server,
    s3_bucket: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    caplog.set_level(logging.DEBUG)
    # Only this library's own clients: SDKs that log what they sign are not turned on by us.
    logging.getLogger("botocore").setLevel(logging.INFO)
    log = log_text([protocol(), metadata(), *(add(f"f{n}.parquet") for n in range(10_000))])
    s3_server.fill(s3_bucket, [f"t/_delta_log/{0:020}.json"], log)
    s3_server.intercept = unity.guarded
    said = []

    def run(*words: str) -> int:
        status = main([*words, *options])
        said.append("".join(capsys.readouterr()))
        return status

    assert run("files", _NAME) == 0
    assert run("inspect", _NAME) == 0
    assert run("health", _NAME, "--json") == 0
    assert run("vacuum", _NAME, "--dry-run", "-v") == 5, "no data file exists"
    assert run("checkpoint", _NAME, "-v") == 0
    assert unity.vended()[-1] == "READ_WRITE"
    assert "READ_WRITE" not in unity.vended()[:-1]
    unity.reject_keys()
    assert run("fsck", _NAME, "-v") == 5
    unity.tables["main.s.t"].rights = frozenset()
    unity.reject_keys()
    # Another process would not know that keys have just been rejected.
    source_of.cache_clear()
    assert run("history", _NAME) == 3
    source_of.cache_clear()
    s3_server.intercept = _echo
    unity.tables["main.s.t"].rights = frozenset(("READ", "READ_WRITE"))
    assert run("history", _NAME) != 0
    assert "AWS4-HMAC-SHA256 Credential=***" in said[-1], "the store repeats what it was sent"
    monkeypatch.setenv("UNITY_CATALOG_TOKEN", f"{TOKEN}-revoked")
    assert run("history", _NAME) == 3
    monkeypatch.setenv("UNITY_CATALOG_TOKEN", TOKEN)
    unity.status = 400
    assert run("history", _NAME) == 3
    text = "\n".join([*said, *(record.getMessage() for record in caplog.records)])
    assert text.count("\n") > 10_000
    assert len(unity.keys) >= 4
    assert [canary for canary in unity.canaries() if canary in text] == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in path.read_bytes() for path in files)


@pytest.mark.spark
@pytest.mark.skipif(PLAY != "all", reason="takes a minute: see DELTA_MAINTENANCE_PLAY")
def test_a_spark_job_leaves_no_canary_behind(
    unity: UnityServer, options: list[str], s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    store = open_store(f"s3://{s3_bucket}/t", s3_server.storage_options)
    made = Rewritten(store=store, partitions="x")
    before = made.rows()
    s3_server.intercept = unity.guarded
    unity.lifetime_ms = 60_000
    marker = uuid.uuid4().hex
    folders = [tmp_path / name for name in ("local", "events", "tmp")]
    for folder in folders:
        folder.mkdir()
    canaries = [TOKEN, "canaryKey", "canarySecret", "canarySession"]
    command = [
        *(sys.executable, "-m", "delta_maintenance", "optimize", _NAME, "-v"),
        *("--engine", "spark", "--master", "local[2]", "--other-writers", "none"),
        *("--spark-conf", "spark.eventLog.enabled=true"),
        *("--spark-conf", f"spark.eventLog.dir={folders[1].as_uri()}"),
        *("--spark-conf", "spark.ui.enabled=false"),
        *options,
    ]
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folders[0]),
        "TMPDIR": str(folders[2]),
        "MARKER": marker,
    }
    with watched(canaries, folders, marker) as exposure:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    s3_server.intercept = None
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert made.rows() == before
    assert len(unity.keys) >= 3
    assert [canary for canary in canaries if canary in text] == []
    # The token is in the environment, which only this user can read, and nowhere else.
    assert {where.partition(" ")[0] for where in exposure.seen} == {"environ"}
    assert "java" in exposure.marked.values()
