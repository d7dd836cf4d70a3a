"""A job that is told an address with credentials refuses it before Spark starts; and the watch that
other tests keep for secrets."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest

from delta_maintenance.spark import job
from tests.support.hostile.canaries import SECRET
from tests.support.hostile.exposure import watched


@pytest.mark.parametrize(
    "address", [f"s3://AKIA1:{SECRET}@bucket/t", f"az://data/t?sv=1&sig={SECRET}"]
)
def test_a_job_does_not_repeat_the_credentials_in_an_address(
    address: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(spec: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(job, "_in_session", start)
    spec = json.dumps({"operation": "checkpoint", "table": address})
    assert job.main(["--spec", spec]) == 2
    said = "".join(capfd.readouterr())
    assert SECRET not in said and "credentials" in said


def test_a_secret_in_a_process_or_a_file_would_be_seen(tmp_path: Path) -> None:
    secret, marker = uuid.uuid4().hex, uuid.uuid4().hex
    (tmp_path / "below").mkdir()
    with (
        watched([secret], [tmp_path], marker) as exposure,
        subprocess.Popen(
            ["sh", "-c", "echo started; read line", secret],
            env={"TOKEN": secret, "MARKER": marker},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process,
    ):
        # Until then, its arguments and its environment may still be missing.
        assert process.stdout is not None and process.stdout.readline() == b"started\n"
        (tmp_path / "below" / "log").write_text(f"the key is {secret}")
        exposure.look()
        process.communicate(b"\n", timeout=300)
    assert exposure.marked == {process.pid: "sh"}
    log = tmp_path / "below" / "log"
    assert exposure.seen == {"cmdline of sh", "environ of sh", f"file {log}"}
