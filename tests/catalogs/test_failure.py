"""What users read of a failed request."""

from __future__ import annotations

import pytest

from delta_maintenance.catalogs import catalog_error
from delta_maintenance.catalogs.http.authorization import RequestRefused
from delta_maintenance.errors import CatalogError, CatalogUnavailableError


def _line(status: int | None, code: str = "CODE") -> str:
    failure = RequestRefused(status=status, code=code, detail="why")
    error = catalog_error(failure, server="Polaris", where="polaris://prod", needs="TABLE_LIST")
    assert error.exit_status == 3
    assert isinstance(error, CatalogUnavailableError) is (status in (None, 429, 503))
    return str(error)


@pytest.mark.parametrize(
    ("status", "problem", "remedy"),
    [
        (302, "does not answer like a catalog, for", "check the address of the catalog"),
        (401, "rejects the credentials, for", "renew the token, or check the client credentials"),
        (403, "denies access to", "grant TABLE_LIST"),
        (404, "does not know", "check the name and its case, and the address, or grant TABLE_LIST"),
        (418, "refuses the request for", CatalogError.usual_remedy),
        (429, "cannot answer at present, for", CatalogUnavailableError.usual_remedy),
        (503, "cannot answer at present, for", CatalogUnavailableError.usual_remedy),
        (None, "does not answer, for", CatalogUnavailableError.usual_remedy),
    ],
)
def test_a_status_has_its_problem_and_its_remedy(
    status: int | None, problem: str, remedy: str
) -> None:
    assert _line(status) == f"Polaris {problem} polaris://prod (CODE: why); {remedy}"
