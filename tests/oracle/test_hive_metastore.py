"""A real Hive Metastore, with the tables that Delta Spark creates in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_maintenance.address import CatalogKind, CatalogName
from delta_maintenance.catalogs import CatalogTable, PassedOver
from delta_maintenance.catalogs.hive.catalog import HiveCatalog
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError
from delta_maintenance.policies.definition import Policy
from delta_maintenance.policies.orphans import find_orphans
from delta_maintenance.table.read import open_table
from tests.oracle.conftest import JARS
from tests.support.oracle.delta_spark import DeltaSpark, OracleUnavailable
from tests.support.servers.hive_metastore import serve_metastore
from tests.support.servers.ports import free_port

ODD = "ext tab%20le+ü#x"
"""The name of a folder that reads differently if it is decoded."""


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_metastore(tmp_path_factory.mktemp("metastore")) as address:
        yield address


@pytest.fixture(scope="module")
def lake(metastore: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with tables, written by Delta Spark through the metastore."""
    folder = tmp_path_factory.mktemp("lake")
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": metastore,
    }
    try:
        spark = DeltaSpark(jars=JARS, scratch=folder, settings=settings)
    except OracleUnavailable as reason:
        pytest.skip(f"NO ORACLE: {reason}")
    try:
        spark.sql("CREATE DATABASE sales")
        spark.sql("CREATE TABLE sales.managed USING delta COMMENT 'a comment' AS SELECT 1 AS id")
        spark.sql("CREATE TABLE sales.parts (id INT, day DATE) USING delta PARTITIONED BY (day)")
        spark.sql("INSERT INTO sales.parts VALUES (1, DATE'2026-01-01')")
        spark.sql("INSERT INTO sales.parts VALUES (2, DATE'2026-01-02')")
        odd = folder / ODD
        spark.sql(f"CREATE TABLE sales.outside USING delta LOCATION '{odd}' AS SELECT 1 AS id")
        spark.sql(
            f"CREATE TABLE default.MiXed USING delta LOCATION '{folder / 'mixed'}' AS SELECT 1"
        )
        # Nobody knows these two: the source of a clone, and a table that was dropped.
        spark.write(folder / "sour ce", "SELECT 1 AS id")
        spark.sql(f"CREATE TABLE sales.clone SHALLOW CLONE delta.`{folder / 'sour ce'}`")
        spark.sql(f"CREATE TABLE sales.lost USING delta LOCATION '{folder / 'lost'}' AS SELECT 1")
        spark.sql("DROP TABLE sales.lost")
        spark.sql("CREATE TABLE sales.parquet (id INT) USING parquet")
        spark.sql("CREATE TABLE sales.text (id INT) STORED AS TEXTFILE")
        spark.sql("CREATE VIEW sales.seen AS SELECT * FROM sales.managed")
        yield folder
    finally:
        spark.close()


@pytest.fixture
def catalog(metastore: str, lake: Path) -> Iterator[HiveCatalog]:
    # The first server does not answer.
    both = f"thrift://127.0.0.1:{free_port()},{metastore}"
    with HiveCatalog(CatalogSettings(kind=CatalogKind.HIVE, address=both)) as found:
        yield found


def everything(catalog: HiveCatalog) -> dict[str, CatalogTable]:
    found = catalog.list(leads_to=lambda _: True, includes=lambda _: True, known_tables={})
    assert found.failures == ()
    assert found.requests == 3
    assert found.passed_over == {PassedOver.OTHER_FORMAT: 2, PassedOver.VIEW: 1}
    return {str(table.name): table for table in found.tables}


def test_every_delta_table_is_found_at_its_location(catalog: HiveCatalog, lake: Path) -> None:
    tables = everything(catalog)
    assert list(tables) == [
        "hms://default.mixed",
        "hms://sales.clone",
        "hms://sales.managed",
        "hms://sales.outside",
        "hms://sales.parts",
    ]
    newest = {name: open_table(table.location).snapshot() for name, table in tables.items()}
    assert newest["hms://sales.parts"].version == 2
    assert newest["hms://sales.outside"].version == 0
    assert open_table(tables["hms://sales.outside"].location).uri == str(lake / ODD)
    assert tables["hms://sales.managed"].comment == "a comment"
    assert tables["hms://sales.managed"].owner
    assert (lake / ODD / "_delta_log").is_dir()


def test_a_name_is_resolved_as_it_is_listed(catalog: HiveCatalog) -> None:
    for name, table in everything(catalog).items():
        assert catalog.resolve(CatalogName.parse(name)) == table


def test_a_metastore_that_has_no_catalogs_serves_its_own(metastore: str, lake: Path) -> None:
    settings = CatalogSettings(kind=CatalogKind.HIVE, address=metastore, catalog="hive")
    with HiveCatalog(settings) as catalog:
        assert list(everything(catalog))[0] == "hms://hive.default.mixed"


def test_what_the_metastore_does_not_know_is_refused(catalog: HiveCatalog) -> None:
    for name in ("hms://sales.absent", "hms://absent.managed"):
        with pytest.raises(CatalogError, match=f"does not know {name} ") as caught:
            catalog.resolve(CatalogName.parse(name))
        assert caught.value.exit_status == 3 and not caught.value.retryable
    with pytest.raises(CatalogError, match="no Delta table"):
        catalog.resolve(CatalogName.parse("hms://sales.seen"))


def test_the_check_says_that_the_metastore_answers(catalog: HiveCatalog) -> None:
    assert catalog.check() == "the metastore answers and names 2 databases"


def test_dropped_tables_are_orphans_and_sources_of_clones_are_not(
    metastore: str, lake: Path
) -> None:
    catalogs = {"lake": {"kind": "hive", "address": metastore}}
    policy = Policy.from_json({"version": 1, "catalogs": catalogs})
    found = find_orphans(policy, [str(lake)])
    assert [each.uri for each in found.orphans] == [str(lake / "lost")]
    assert [(each.uri, each.by) for each in found.referenced] == [
        (str(lake / "sour ce"), ("hms://sales.clone",))
    ]
    assert (found.known, found.failures) == (5, ())
