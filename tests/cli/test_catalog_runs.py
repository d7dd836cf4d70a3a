"""A run of a policy whose catalog changes in the middle: what is maintained, refused and left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance import clock
from delta_maintenance.catalogs import source_of
from delta_maintenance.catalogs.http import client
from delta_maintenance.cli import output
from delta_maintenance.cli.main import main
from delta_maintenance.policies.discovery import discover
from delta_maintenance.policies.lanes import start_jobs
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.servers.unity_delta import TOKEN, UnityServer, UnityTable, serve_unity
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import log_text

pytestmark = pytest.mark.server

_NAMES = ("a", "b", "c")
_ERROR = 3


@pytest.fixture
def unity(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[UnityServer]:
    """Three tables with a checkpoint that is due, on a store that accepts vended keys only."""
    monkeypatch.setattr(client, "PAUSES", ())
    monkeypatch.setitem(discover.__kwdefaults__, "pauses", ())
    monkeypatch.setenv("LAKE_TOKEN", TOKEN)
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.setenv(name, s3_server.storage_options[name])
    with serve_unity() as server:
        for number, name in enumerate(_NAMES):
            location = f"s3://{s3_bucket}/{name}"
            server.add(f"prod.s.{name}", UnityTable(location=location, table_id=f"id-{number}"))
            _commit(s3_server, s3_bucket, name, 0, protocol(), metadata())
            for version in (1, 2, 3):
                _commit(s3_server, s3_bucket, name, version, add(f"{version}.parquet"))
        s3_server.intercept = server.guarded
        yield server


@pytest.fixture
def run(
    unity: UnityServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], tuple[int, dict[str, Any], str]]:
    """Runs the policy once: the exit status, the results by name, and what is said of tables."""
    lake = {
        "kind": "unity",
        "address": unity.url,
        "catalog": "prod",
        "options": {"token": "${env:LAKE_TOKEN}"},
    }
    document = {
        "version": 1,
        "defaults": {"checkpoint": {"max_commits": 2}},
        "catalogs": {"lake": lake},
        "tables": [{"catalog": "lake.**"}],
    }
    path, state = tmp_path / "policy.yaml", tmp_path / "state"
    path.write_text(yaml.safe_dump(document))
    # One after the other, so that changes fall between two tables.
    monkeypatch.setitem(start_jobs.__kwdefaults__, "lanes", 1)
    monkeypatch.setattr(output, "_QUIET", timedelta(days=1))

    def once() -> tuple[int, dict[str, Any], str]:
        status = main(["run", str(path), "--state", str(state), "--json"])
        shown = capsys.readouterr()
        kept = b"".join(file.read_bytes() for file in state.rglob("*") if file.is_file())
        assert b"uc://prod.s.b" in kept
        texts = shown.out + shown.err + kept.decode()
        assert [canary for canary in unity.canaries() if canary in texts] == []
        results = json.loads(shown.out)
        # A slow machine also shows progress.
        said = "\n".join(line for line in shown.err.splitlines() if "uc://" in line)
        return status, {each["name"].rpartition(".")[2]: each for each in results}, said

    return once


def _commit(server: S3Server, bucket: str, table: str, version: int, *actions: Any) -> None:
    server.fill(bucket, [f"{table}/_delta_log/{version:020}.json"], log_text([*actions]))


def _after_the_first_write(
    server: S3Server, guarded: Callable[[Application], Application], change: Callable[[], object]
) -> None:
    """Calls `change` once, when something has been written to the first table."""
    left = [change]

    def intercept(application: Application) -> Application:
        guard = guarded(application)

        def answer(environ: Environ, start: StartResponse) -> Iterable[bytes]:
            answered = guard(environ, start)
            if environ["REQUEST_METHOD"] == "PUT" and left:
                left.pop()()
            return answered

        return answer

    server.intercept = intercept


def _writes(server: S3Server, bucket: str, table: str) -> list[str]:
    return [
        line
        for line in server.requests
        if line.startswith(("PUT", "POST", "DELETE")) and f"/{bucket}/{table}/" in line
    ]


def _statuses(results: dict[str, Any]) -> dict[str, str]:
    return {name: result["status"] for name, result in results.items()}


def test_everything_is_maintained(
    unity: UnityServer, run: Any, s3_server: S3Server, s3_bucket: str
) -> None:
    status, results, _ = run()
    assert (status, _statuses(results)) == (0, dict.fromkeys(_NAMES, "done"))
    assert all(_writes(s3_server, s3_bucket, name) for name in _NAMES)


def test_a_right_that_is_revoked_stops_its_table_only(
    unity: UnityServer, run: Any, s3_server: S3Server, s3_bucket: str
) -> None:
    _after_the_first_write(
        s3_server,
        unity.guarded,
        lambda: setattr(unity.tables["prod.s.b"], "rights", frozenset(("READ",))),
    )
    status, results, said = run()
    assert status == _ERROR
    assert _statuses(results) == {"a": "done", "b": "failed", "c": "done"}
    [line] = said.splitlines()
    assert "uc://prod.s.b" in line and "SELECT and MODIFY" in line
    assert _writes(s3_server, s3_bucket, "b") == []


def test_a_token_that_expires_stops_what_follows(
    unity: UnityServer, run: Any, s3_server: S3Server, s3_bucket: str
) -> None:
    _after_the_first_write(s3_server, unity.guarded, lambda: setattr(unity, "status", 401))
    status, results, said = run()
    assert status == _ERROR
    assert _statuses(results) == {"a": "done", "b": "failed", "c": "failed"}
    assert [("rejects the credentials" in line) for line in said.splitlines()] == [True]
    unity.status = None
    # Another process would not know the failure.
    source_of.cache_clear()
    assert _statuses(run()[1]) == {"a": "nothing-due", "b": "done", "c": "done"}


def test_a_table_that_is_dropped_is_left_alone(
    unity: UnityServer, run: Any, s3_server: S3Server, s3_bucket: str
) -> None:
    _after_the_first_write(s3_server, unity.guarded, lambda: unity.tables.pop("prod.s.b"))
    status, results, said = run()
    assert status == _ERROR
    assert _statuses(results) == {"a": "done", "b": "failed", "c": "done"}
    [line] = said.splitlines()
    assert "does not know uc://prod.s.b" in line
    assert _writes(s3_server, s3_bucket, "b") == []


@pytest.mark.parametrize("vended", ["for the new location", "for everything"])
def test_a_location_that_changes_is_not_maintained(
    unity: UnityServer, run: Any, s3_server: S3Server, s3_bucket: str, vended: str
) -> None:
    _commit(s3_server, s3_bucket, "moved", 0, protocol(), metadata())
    table = unity.tables["prod.s.b"]
    answers = type(unity)._old_credentials

    def wide(self: UnityServer, table: UnityTable | None, access: str) -> Any:
        status, answer = answers(self, table, access)
        return status, answer | {"url": f"s3://{s3_bucket}"}

    def change() -> None:
        table.location = f"s3://{s3_bucket}/moved"
        if vended == "for everything":
            patch.setattr(type(unity), "_old_credentials", wide)

    with pytest.MonkeyPatch.context() as patch:
        _after_the_first_write(s3_server, unity.guarded, change)
        status, results, said = run()
    assert status == _ERROR
    assert _statuses(results) == {"a": "done", "b": "failed", "c": "done"}
    assert "another location" in said
    assert [_writes(s3_server, s3_bucket, name) for name in ("b", "moved")] == [[], []]


@pytest.mark.parametrize("prefix", ["other", "a_b", "a/_delta_log_2"])
def test_credentials_for_another_place_are_not_used(
    unity: UnityServer,
    run: Any,
    s3_server: S3Server,
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
) -> None:
    answers = type(unity)._old_credentials

    def elsewhere(self: UnityServer, table: UnityTable | None, access: str) -> Any:
        status, answer = answers(self, table, access)
        if table is unity.tables["prod.s.a"]:
            answer |= {"url": f"s3://{s3_bucket}/{prefix}"}
        return status, answer

    monkeypatch.setattr(type(unity), "_old_credentials", elsewhere)
    status, results, said = run()
    assert status == _ERROR
    assert _statuses(results) == {"a": "failed", "b": "done", "c": "done"}
    assert "vends no credentials for" in said
    assert not any(f"/{s3_bucket}/a/" in line for line in s3_server.requests)


def test_a_clock_that_is_an_hour_behind_is_named(
    unity: UnityServer, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unity.lifetime_ms = -int(timedelta(hours=1) / timedelta(milliseconds=1))
    status, results, said = run()
    assert (status, _statuses(results)) == (_ERROR, dict.fromkeys(_NAMES, "failed"))
    # Tables that fail for one reason share a line.
    assert said.count("compare its clock") == 1


def test_a_clock_that_is_an_hour_ahead_does_no_harm(
    unity: UnityServer, run: Any, s3_server: S3Server
) -> None:
    _after_the_first_write(s3_server, unity.guarded, unity.reject_keys)
    unity.lifetime_ms = 2 * 3_600_000
    status, results, _ = run()
    assert (status, _statuses(results)) == (0, dict.fromkeys(_NAMES, "done"))
    assert all(key.expires_ms > clock.epoch_millis(clock.now()) for key in unity.keys.values())
