"""A store that accepts connections and never answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import dagster as dg
import pytest

from delta_maintenance.rest import failure as request_failure
from delta_maintenance.storage.s3 import S3Client
from tests.support.servers.silence import serve_silence

Load = Callable[..., dg.Definitions]
REQUESTS = 2
"""The requests of a step before it ends: for the hint and for the listing of the log. Each takes a
minute if it is not answered.
"""


@pytest.fixture
def connections() -> Iterator[tuple[str, list[socket.socket]]]:
    """The address of a server that never answers, and its connections."""
    with serve_silence() as served:
        yield served


@pytest.mark.parametrize("job", ["delta_maintenance", "delta_maintenance_health"])
def test_a_step_on_a_silent_store_ends_after_a_known_number_of_requests(
    connections: tuple[str, list[socket.socket]],
    load: Load,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
) -> None:
    pytest.importorskip("s3fs", reason="NO S3FS: install the extra s3")
    address, accepted = connections
    # Requests wait for 60 s, and are not repeated after 45 s.
    assert S3Client.__init__.__kwdefaults__["read_timeout"] == 60
    assert request_failure.PATIENCE < 60
    monkeypatch.setitem(S3Client.__init__.__kwdefaults__, "read_timeout", 0.2)
    monkeypatch.setattr(request_failure, "PATIENCE", 0.1)
    definitions = load(
        tables=[{"uri": "s3://lake/events", "key": "lake/events"}],
        storage={
            "options": {
                "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "eu-central-1",
            }
        },
        execution={"retry_policy": {"max_retries": 0}},
    )
    result = definitions.resolve_job_def(job).execute_in_process(
        instance=instance, raise_on_error=False
    )
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    for part in ("s3://lake/events", "S3 failed", "timeout"):
        assert part in str(failure.step_failure_data)
    assert len(accepted) == REQUESTS
