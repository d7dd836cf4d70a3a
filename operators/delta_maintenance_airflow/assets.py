"""Assets of Delta tables with the scheme `delta`, for any store.

`delta://s3/lake/sales/orders` is the table at `s3://lake/sales/orders`: the scheme of the address
becomes the host. A local path has the host `file`. Airflow hands such a URI to OpenLineage as the
data set of the physical table, and needs no provider of the store for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from delta_maintenance.address import is_catalog_name
from delta_maintenance_airflow.lineage import dataset_name

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.sdk import Asset

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


def asset_uri(table_uri: str) -> str:
    """Returns the URI of the asset of a table.

    Raises `InvalidRequestError` for a malformed address, which may contain a secret.
    """
    from delta_maintenance.address import Address

    address = Address.parse(table_uri)
    if address.is_local:
        return f"delta://file/{address.path.lstrip('/')}"
    scheme, _, path = str(address).partition("://")
    return f"delta://{scheme}/{path}"


def table_uri(uri: str) -> str:
    """Returns the address of the table of an asset: the inverse of `asset_uri`."""
    split_uri = urlsplit(uri)
    return f"/{split_uri.path.lstrip('/')}" if split_uri.netloc == "file" else _address(split_uri)


def create_asset(
    *, table: str, name: str | None = None, extra: dict[str, Any] | None = None
) -> Asset:
    """Creates the asset of the table at an address, or with a name in a catalog.

    The name in the catalog is also that of the asset, unless another is given, and in its extra.
    """
    from airflow.sdk import Asset

    uri = asset_uri(table)
    if is_catalog_name(table):
        return Asset(name=name or table, uri=uri, extra={"catalog_name": table, **(extra or {})})
    return Asset(name=name or uri, uri=uri, extra=extra or {})


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Normalises the URI. Raises `ValueError` if it names no table."""
    if not _SCHEME.fullmatch(uri.netloc) or not uri.path.strip("/"):
        raise ValueError(
            "a Delta asset is delta://SCHEME/PLACE/PATH, such as delta://s3/lake/orders"
        )
    return uri._replace(path=f"/{uri.path.strip('/')}", fragment="")


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset | None:
    """Returns the OpenLineage dataset of the table, named as by the operators; None if there is no
    name.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    dataset = dataset_name(table_uri(asset.uri))
    return Dataset(namespace=dataset[0], name=dataset[1]) if dataset is not None else None


def _address(split_uri: SplitResult) -> str:
    return f"{split_uri.netloc}://{split_uri.path.lstrip('/')}"
