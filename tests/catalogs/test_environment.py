"""Settings of catalogs from storage options and from the environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.address import CatalogKind
from delta_maintenance.catalogs.settings import (
    CatalogSettings,
    options_of,
    secret_variables,
    settings_of,
)


def test_the_usual_variables_of_a_kind_make_its_settings() -> None:
    settings = settings_of(
        CatalogKind.GRAVITINO,
        {},
        {
            "GRAVITINO_URI": "https://g",
            "GRAVITINO_CLIENT_ID": "id",
            "GRAVITINO_CLIENT_SECRET": "s3cret",
            "GRAVITINO_TOKEN_URI": "https://t",
            "GRAVITINO_METALAKE": "lake",
        },
    )
    assert settings.address == "https://g"
    assert settings.options == {
        "client_id": "id",
        "client_secret": "s3cret",
        "token_address": "https://t",
        "metalake": "lake",
    }
    assert "s3cret" not in repr(settings)


def test_databricks_is_found_by_its_own_variables() -> None:
    around = {"DATABRICKS_HOST": "dbc-1.cloud.databricks.com", "DATABRICKS_TOKEN": "dapi"}
    settings = settings_of(CatalogKind.UNITY, {}, around)
    assert settings.address == "https://dbc-1.cloud.databricks.com"
    assert settings.options == {"token": "dapi"}


def test_the_variables_of_unity_catalog_come_before_those_of_databricks() -> None:
    around = {"DATABRICKS_HOST": "d", "DATABRICKS_TOKEN": "dapi", "UNITY_CATALOG_URI": "https://u"}
    assert settings_of(CatalogKind.UNITY, {}, around).options == {}


@pytest.mark.parametrize(
    "around",
    [
        {"UNITY_CATALOG_URI": "https://other", "UNITY_CATALOG_TOKEN": "t"},
        {"DATABRICKS_HOST": "https://other", "DATABRICKS_TOKEN": "t"},
        {"DATABRICKS_TOKEN": "t"},
    ],
)
def test_a_token_is_sent_only_to_the_catalog_that_it_belongs_to(around: dict[str, str]) -> None:
    settings = settings_of(CatalogKind.UNITY, {"catalog_uri": "https://mine"}, around)
    assert (settings.address, settings.options) == ("https://mine", {})


@pytest.mark.parametrize("address", ["https://mine", "https://MINE/"])
def test_a_token_without_another_address_belongs_to_the_given_one(address: str) -> None:
    around = {"UNITY_CATALOG_TOKEN": "t", "UNITY_CATALOG_URI": address}
    settings = settings_of(CatalogKind.UNITY, {"catalog_uri": "https://mine"}, around)
    assert settings.options == {"token": "t"}


def test_given_credentials_take_the_place_of_all_those_in_the_environment() -> None:
    given = {"catalog_client_id": "id", "catalog_client_secret": "s", "catalog_name": "prod"}
    around = {"POLARIS_URI": "https://p", "POLARIS_TOKEN": "t", "POLARIS_SCOPE": "all"}
    settings = settings_of(CatalogKind.POLARIS, given, around)
    assert settings.options == {"client_id": "id", "client_secret": "s", "scope": "all"}
    assert (settings.address, settings.catalog) == ("https://p", "prod")


_OPTIONS = st.dictionaries(
    st.sampled_from(["token", "client_id", "client_secret", "scope", "token_address", "metalake"]),
    st.text(min_size=1, max_size=5),
)


@given(
    kind=st.sampled_from([k for k in CatalogKind if k not in (CatalogKind.GLUE, CatalogKind.HIVE)]),
    address=st.sampled_from([None, "https://one"]),
    options=_OPTIONS,
)
def test_settings_survive_as_options_and_as_variables(
    kind: CatalogKind, address: str | None, options: dict[str, str]
) -> None:
    settings = CatalogSettings(kind=kind, address=address, catalog="c", options=options)
    told = options_of(settings)
    assert settings_of(kind, told, {}) == settings
    secrets = secret_variables(settings)
    public = {
        name: value
        for name, value in told.items()
        if name.removeprefix("catalog_") not in options
        or name.removeprefix("catalog_") in ("scope", "metalake")
    } | ({"catalog_token_uri": options["token_address"]} if "token_address" in options else {})
    held = {name: value for name, value in secrets.items() if value is not None}
    found = settings_of(kind, public, held)
    if "token" not in options or not options.keys() & {"client_id", "client_secret"}:
        assert found == settings
