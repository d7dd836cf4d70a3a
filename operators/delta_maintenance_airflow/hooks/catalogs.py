"""The connection types of catalogs: tables by name, and the credentials that catalogs vend.

Such a connection takes the place of a `delta` connection for tables that are given by name, and is
the `connection` of a catalog in a policy.
"""

from __future__ import annotations

import os
from typing import ClassVar

from delta_maintenance.address import CatalogKind
from delta_maintenance_airflow.hooks.delta import DeltaHook

__all__ = [
    "GlueHook",
    "GravitinoHook",
    "HiveMetastoreHook",
    "LakekeeperHook",
    "PolarisHook",
    "UnityCatalogHook",
]


class CatalogHook(DeltaHook):
    """Opens tables by their names, with an Airflow connection to their catalog.

    The host is the address of the catalog. The password is a token, or with a login, which is then
    the client ID, the client secret. `catalog` in the extra is the name of the catalog on the
    server, and `storage_conn_id` a connection with access to the stores of tables for which the
    catalog vends no credentials. Every other field of the extra is an option of the kind of
    catalog, such as `scope`. Secrets are masked in logs as soon as the connection is read.

    :param delta_conn_id: the connection.
    """

    kind: ClassVar[CatalogKind]

    def _try_connection(self) -> tuple[bool, str]:
        from delta_maintenance.catalogs.catalog import open_catalog
        from delta_maintenance.catalogs.settings import settings_of

        with open_catalog(settings_of(self.kind, self.storage_options(), os.environ)) as catalog:
            return True, catalog.check()


class UnityCatalogHook(CatalogHook):
    """Unity Catalog: the open-source server, and Databricks."""

    kind = CatalogKind.UNITY
    conn_type = "delta_unity_catalog"
    hook_name = "Delta Lake, Unity Catalog"
    default_conn_name = "delta_unity_catalog_default"


class GlueHook(CatalogHook):
    """AWS Glue. Login and password are an access key and its secret."""

    kind = CatalogKind.GLUE
    conn_type = "delta_glue"
    hook_name = "Delta Lake, AWS Glue"
    default_conn_name = "delta_glue_default"


class HiveMetastoreHook(CatalogHook):
    """Hive Metastore over Thrift."""

    kind = CatalogKind.HIVE
    conn_type = "delta_hive_metastore"
    hook_name = "Delta Lake, Hive Metastore"
    default_conn_name = "delta_hive_metastore_default"


class LakekeeperHook(CatalogHook):
    """Lakekeeper, generic tables."""

    kind = CatalogKind.LAKEKEEPER
    conn_type = "delta_lakekeeper"
    hook_name = "Delta Lake, Lakekeeper"
    default_conn_name = "delta_lakekeeper_default"


class PolarisHook(CatalogHook):
    """Apache Polaris, generic tables."""

    kind = CatalogKind.POLARIS
    conn_type = "delta_polaris"
    hook_name = "Delta Lake, Apache Polaris"
    default_conn_name = "delta_polaris_default"


class GravitinoHook(CatalogHook):
    """Apache Gravitino."""

    kind = CatalogKind.GRAVITINO
    conn_type = "delta_gravitino"
    hook_name = "Delta Lake, Apache Gravitino"
    default_conn_name = "delta_gravitino_default"
