"""The remedy of each refusal that something outside of a table causes is played."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from delta_maintenance.catalogs.http import client
from delta_maintenance.errors import DeltaMaintenanceError
from tests.support.remedies.situations import SITUATIONS, Attempt, Stage

pytestmark = pytest.mark.server


def refusal(attempt: Attempt) -> str | None:
    try:
        attempt()
    except DeltaMaintenanceError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_remedy_of_a_situation_helps(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES", ())
    situation = SITUATIONS[name]
    with ExitStack() as stack:
        stage = Stage(tmp_path, stack, lambda: request.getfixturevalue("s3_server"))
        attempt, mend = situation.begin(stage)
        text = refusal(attempt)
        assert text is not None and re.search(situation.problem, text), text
        assert text.count("\n") == 0 and "; " in text
        mend()
        assert refusal(attempt) is None
