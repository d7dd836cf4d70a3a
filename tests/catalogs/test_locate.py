"""From names to addresses, and references to catalogs in storage options."""

from __future__ import annotations

import pytest

from delta_maintenance.address import Access, Address, CatalogKind, CatalogName, is_catalog_option
from delta_maintenance.catalogs import Catalog, CatalogTable
from delta_maintenance.catalogs import catalog as opening
from delta_maintenance.catalogs.reference import CatalogReference, locate
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError, InvalidRequestError
from delta_maintenance.storage.options import split_reference


class _Catalog(Catalog):
    """A catalog with one table per form."""

    kind = CatalogKind.UNITY

    def __init__(self, settings: CatalogSettings) -> None:
        self.settings = settings

    def list(self, **_: object) -> object:  # type: ignore[override]
        raise NotImplementedError

    def resolve(self, name: CatalogName) -> CatalogTable:
        if name.table == "missing":
            raise CatalogError(f"{name} does not exist")
        return CatalogTable(
            name=name,
            location="s3://lake/orders",
            vends_credentials=name.table in ("vended", "managed"),
            catalog_managed=name.table == "managed",
        )

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"{__name__}:_Catalog"
    monkeypatch.setattr(opening, "_CLIENTS", {CatalogKind.UNITY: module})
    monkeypatch.setattr(opening, "import_module", lambda _: __import__(__name__, fromlist=["_"]))


_GIVEN = {"AWS_REGION": "eu-west-1", "catalog_uri": "https://uc", "catalog_token": "canary"}


def test_an_address_stays_as_it_is() -> None:
    located = locate("s3://lake/t", {"key": "a"}, environment={})
    assert (located.address, located.storage_options) == ("s3://lake/t", {"key": "a"})
    assert located.name is None


def test_a_name_becomes_the_address_and_a_reference() -> None:
    located = locate("uc://main.s.vended", _GIVEN, access=Access.READ, environment={})
    assert located.address == "s3://lake/orders"
    assert located.storage_options == {
        **_GIVEN,
        "catalog_table": "uc://main.s.vended",
        "catalog_location": "s3://lake/orders",
        "catalog_access": "read",
    }
    assert "canary" not in repr(located)


def test_a_table_without_vended_credentials_needs_no_reference() -> None:
    located = locate("uc://main.s.plain", _GIVEN, environment={})
    assert located.storage_options == {"AWS_REGION": "eu-west-1"}
    assert str(located.name) == "uc://main.s.plain"


def test_a_reference_holds_the_token_of_the_environment() -> None:
    around = {"UNITY_CATALOG_URI": "https://uc", "UNITY_CATALOG_TOKEN": "canary"}
    located = locate("uc://main.s.managed", None, environment=around)
    reference = CatalogReference.of(located.storage_options, {})
    assert reference is not None
    assert all(map(is_catalog_option, located.storage_options))
    assert reference.managed and reference.access is None
    assert reference.settings.options == {"token": "canary"}
    assert "canary" not in str(reference.public())
    assert reference.secrets()["UNITY_CATALOG_TOKEN"] == "canary"
    assert "canary" not in repr(reference)
    variables = {"UNITY_CATALOG_TOKEN": "canary"}
    assert CatalogReference.of(reference.public(), variables) == reference


def test_an_address_with_a_reference_states_the_access() -> None:
    """As of a table of a policy: what watches it shares no credentials with what writes to it."""
    given = {**_GIVEN, "catalog_table": "uc://main.s.vended"}
    located = locate("s3://lake/orders", given, access=Access.READ, environment={})
    assert located.storage_options == {**given, "catalog_access": "read"}
    chosen = {**given, "catalog_access": "none"}
    located = locate("s3://lake/orders", chosen, access=Access.READ, environment={})
    assert located.storage_options == chosen
    assert locate("s3://lake/orders", given, environment={}).storage_options == given


def test_own_credentials_are_used_by_choice() -> None:
    given = {**_GIVEN, "catalog_access": "none"}
    located = locate("uc://main.s.vended", given, access=Access.READ_WRITE, environment={})
    address = Address.parse(located.address)
    reference, own = split_reference(address, located.storage_options, {})
    assert reference is not None and not reference.vends
    assert own == {"AWS_REGION": "eu-west-1"}


def test_an_unknown_access_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="catalog_access is 'all'"):
        CatalogReference.of({"catalog_table": "uc://a.b", "catalog_access": "all"}, {})


def test_a_missing_table_is_refused() -> None:
    with pytest.raises(CatalogError, match=r"uc://main\.s\.missing does not exist"):
        locate("uc://main.s.missing", environment={})
