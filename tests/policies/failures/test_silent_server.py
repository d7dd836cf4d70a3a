"""Stores that accept connections and never answer: what a run over a policy waits for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance import clock
from delta_maintenance.cli.main import main
from delta_maintenance.ledger import recording
from delta_maintenance.policies import clones as clones_module
from delta_maintenance.policies.lanes import Job
from delta_maintenance.rest import failure as request_failure
from delta_maintenance.storage.s3 import S3Client
from tests.support.operations.vacuum_cases import removed
from tests.support.servers.silence import serve_silence
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.vacuum_tables import Folder

pytestmark = pytest.mark.server
NAMES = [f"t{number}" for number in range(6)]
TIMEOUT, PATIENCE = 0.6, 0.4
"""For how many seconds requests wait, and the search for clones."""
OF_A_TABLE, OF_A_LEDGER = 5, 3
"""The requests before each is known to be silent: for a table, two of its own run and three of the
search for clones."""


def test_a_silent_table_and_a_silent_ledger_are_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("s3fs", reason="NO S3FS: install the extra s3")
    monkeypatch.setitem(S3Client.__init__.__kwdefaults__, "read_timeout", TIMEOUT)
    monkeypatch.setattr(request_failure, "PATIENCE", TIMEOUT / 2)
    monkeypatch.setattr(recording, "_LONG", TIMEOUT / 2)
    monkeypatch.setattr(recording, "_failed_at", {})
    monkeypatch.setattr(clones_module, "_PATIENCE", PATIENCE)
    monkeypatch.setattr(clones_module, "_BRIEFLY", PATIENCE / 4)
    wait_for, waited = clones_module.wait_for, []

    def wait_timed(job: Job[Any], *, patience: float) -> bool:
        began = time.monotonic()
        try:
            return wait_for(job, patience=patience)
        finally:
            waited.append(time.monotonic() - began)

    monkeypatch.setattr(clones_module, "wait_for", wait_timed)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with serve_silence() as (tables_at, of_tables), serve_silence() as (ledger_at, of_ledger):

        def storage(address: str) -> dict[str, dict[str, str]]:
            region = {"AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"}
            return {"options": {"AWS_ENDPOINT_URL": address, **region}}

        for name in NAMES:
            table = Folder(tmp_path / name, now=clock.now(), first=[protocol(), metadata()])
            table.log(add("old.parquet"))
            table.log(removed("old.parquet", 90))
            table.file("old.parquet")
        rules = {"vacuum": True, "limits": {"max_deleted_share": 1}}
        silent: list[Any] = [
            {"uri": f"s3://lake/a{n}", "storage": storage(tables_at)} for n in range(2)
        ]
        document = {
            "version": 1,
            "defaults": rules,
            "tables": [*silent, *({"name": n, "uri": str(tmp_path / n)} for n in NAMES)],
            "ledger": {"uri": "s3://books/ledger", "storage": storage(ledger_at)},
        }
        policy = tmp_path / "policy.yaml"
        policy.write_text(yaml.safe_dump(document))
        main(["run", str(policy), "--state", str(tmp_path / "state"), "--json"])
    results = {each["name"]: each["status"] for each in json.loads(capsys.readouterr().out)}
    assert [results[name] for name in NAMES] == ["done"] * len(NAMES)
    assert [results[table["uri"]] for table in silent] == ["failed"] * 2
    assert len(of_tables) <= OF_A_TABLE * len(silent) and len(of_ledger) <= OF_A_LEDGER
    # Each vacuum asks twice for each silent table.
    assert len(waited) > 2 * len(NAMES) and sum(waited) < 2 * PATIENCE * len(silent)
