"""Assets with the scheme `delta`: their URIs, and the data sets that OpenLineage gets.

The client of OpenLineage, which is not installed here, is replaced.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from airflow.providers.common.compat.openlineage import facet
from airflow.sdk import Asset

from delta_maintenance_airflow.assets import (
    asset_uri,
    convert_asset_to_openlineage,
    create_asset,
    sanitize_uri,
    table_uri,
)

pytestmark = pytest.mark.airflow


class Dataset(NamedTuple):
    namespace: str
    name: str


@pytest.fixture(autouse=True)
def openlineage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facet, "Dataset", Dataset)


@pytest.mark.parametrize(
    ("table", "uri", "dataset"),
    [
        ("s3://lake/sales/orders", "delta://s3/lake/sales/orders", ("s3://lake", "sales/orders")),
        ("/data/lake/orders", "delta://file/data/lake/orders", ("file", "/data/lake/orders")),
        (
            "abfss://lake@acme.dfs.core.windows.net/orders",
            "delta://abfss/lake@acme.dfs.core.windows.net/orders",
            ("abfss://lake@acme.dfs.core.windows.net", "orders"),
        ),
    ],
)
def test_the_asset_of_a_table_becomes_its_data_set(
    airflow_db: None, table: str, uri: str, dataset: tuple[str, str]
) -> None:
    assert asset_uri(table) == uri
    assert table_uri(uri) == table
    asset = create_asset(table=table, name="orders")
    # Airflow has put it through the handler.
    assert isinstance(asset, Asset) and asset.uri == uri
    assert convert_asset_to_openlineage(asset, None) == dataset


def test_an_asset_has_one_form(airflow_db: None) -> None:
    assert Asset("a", uri="delta://s3/lake/orders/").uri == "delta://s3/lake/orders"


def test_the_maintenance_of_a_table_is_an_asset_of_its_own(airflow_db: None) -> None:
    maintenance = Asset("a", uri="delta://s3/lake/orders?maintenance=run")
    assert maintenance.uri == "delta://s3/lake/orders?maintenance=run"
    assert table_uri(maintenance.uri) == "s3://lake/orders"


@pytest.mark.parametrize("uri", ["delta://s3", "delta:///lake/t", "delta://s3/"])
def test_an_asset_that_names_no_table_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="delta://"):
        sanitize_uri(urlsplit(uri))


def test_a_table_without_a_name_in_openlineage_has_no_data_set(airflow_db: None) -> None:
    asset = create_asset(table="az://lake/orders")
    assert convert_asset_to_openlineage(asset, None) is None
