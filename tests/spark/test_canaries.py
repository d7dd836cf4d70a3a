"""A job that is told an address with credentials refuses it before Spark starts."""

from __future__ import annotations

import json

import pytest
from hostile.canaries import SECRET

from delta_maintenance.spark import job


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
