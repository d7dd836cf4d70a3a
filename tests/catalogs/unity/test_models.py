"""The fake of Unity Catalog answers as the models of its official client say."""

from __future__ import annotations

import pytest

from delta_maintenance.address import Access, CatalogKind, CatalogName
from delta_maintenance.catalogs import open_catalog
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError
from tests.catalogs.unity.test_commits import staged
from tests.support.catalogs.official_models import ModelsUnavailable, problems_of
from tests.support.servers.unity_delta import TOKEN, UnityTable, serve_unity

pytestmark = [pytest.mark.server, pytest.mark.process]


def test_every_answer_fits_its_model() -> None:
    answers = []
    for old in (False, True):
        with serve_unity() as server:
            server.old = old
            table = UnityTable(location="s3://lake/t", managed=True, latest=3)
            table.commits, table.allowed = [staged(2), staged(3)], ["METADATA_CLEANUP"]
            server.add("main.s.t", table)
            settings = CatalogSettings(
                kind=CatalogKind.UNITY, address=server.url, options={"token": TOKEN}
            )
            with open_catalog(settings) as catalog:
                found = catalog.resolve(CatalogName(CatalogKind.UNITY, ("main", "s", "t")))
                catalog.managed_state(found)
                catalog.credentials(found, Access.READ)
                table.rights = frozenset()
                with pytest.raises(CatalogError):
                    catalog.credentials(found, Access.READ_WRITE)
            answers += [answer for answer in server.answers if answer[0] != "UnityError"]
    assert len({model for model, _ in answers}) == 7
    try:
        assert problems_of(answers) == []
    except ModelsUnavailable as reason:
        pytest.skip(f"NO OFFICIAL MODELS: {reason}")
