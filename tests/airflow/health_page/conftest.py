"""The health page of a policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_maintenance.policies import AssessmentStore
from tests.support.orchestrators.health_site import POLICY, Site


@pytest.fixture
def site(airflow_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    store = AssessmentStore(str(tmp_path / "assessments"))
    yield Site(store, policy)
    store.close()
