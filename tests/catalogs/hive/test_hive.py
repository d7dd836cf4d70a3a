"""The catalog of a metastore: names, batches, failures, several servers."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_maintenance.address import Address, CatalogKind, CatalogName
from delta_maintenance.catalogs import CatalogListing, PassedOver
from delta_maintenance.catalogs.hive.catalog import HiveCatalog
from delta_maintenance.catalogs.hive.client import Value
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import CatalogError, CatalogUnavailableError, InvalidRequestError
from tests.support.catalogs.names import AWKWARD
from tests.support.emulators.fake_metastore import Entry, FakeMetastore, delta_entry, serve_fake
from tests.support.servers.ports import free_port

pytestmark = pytest.mark.server


def opened(address: str, catalog: str | None = None, **options: str) -> HiveCatalog:
    found = HiveCatalog(
        CatalogSettings(kind=CatalogKind.HIVE, address=address, catalog=catalog, options=options)
    )
    found._client._pauses = (0.0, 0.0)
    return found


def listed(catalog: HiveCatalog, *databases: str) -> CatalogListing:
    return catalog.list(
        leads_to=lambda parts: not databases or parts[-1] in databases,
        includes=lambda parts: not parts[-1].startswith("tmp_"),
        known_tables={},
    )


def names(listing: CatalogListing) -> list[str]:
    return [str(table.name) for table in listing.tables]


def test_5000_tables_take_a_request_for_300_each() -> None:
    tables = {
        f"db{number}": [delta_entry(f"db{number}", f"t{at}") for at in range(1000)]
        for number in range(5)
    }
    metastore = FakeMetastore(tables=tables)
    with serve_fake(metastore) as address, opened(address) as catalog:
        found = listed(catalog)
    assert len(found.tables) == 5000
    assert found.requests == len(metastore.calls) == 1 + 5 * 4


def test_entries_that_are_no_delta_tables_are_counted() -> None:
    view = {**delta_entry("db", "v"), 12: "VIRTUAL_VIEW"}
    materialized = {**delta_entry("db", "mv"), 12: "MATERIALIZED_VIEW"}
    parquet = {**delta_entry("db", "p"), 9: {"spark.sql.sources.provider": "parquet"}}
    of_trino = {**delta_entry("db", "trino"), 9: {"spark.sql.sources.provider": "DELTA"}}
    entries = [view, materialized, parquet, of_trino, delta_entry("db", "tmp_1")]
    with serve_fake(FakeMetastore(tables={"db": entries})) as address, opened(address) as catalog:
        found = listed(catalog)
    assert names(found) == ["hms://db.trino"]
    assert found.passed_over == {
        PassedOver.VIEW: 2,
        PassedOver.OTHER_FORMAT: 1,
        PassedOver.NOT_IN_POLICY: 1,
    }


def test_databases_that_the_pattern_does_not_lead_to_are_not_described() -> None:
    metastore = FakeMetastore(tables={name: [delta_entry(name, "t")] for name in ("a", "b")})
    with serve_fake(metastore) as address, opened(address) as catalog:
        assert names(listed(catalog, "b")) == ["hms://b.t"]
    assert metastore.calls.count("get_table_objects_by_name_req") == 1


@settings(max_examples=20, deadline=None)
@example([*AWKWARD])
@given(st.lists(st.text(min_size=1, max_size=255), min_size=1, max_size=8, unique=True))
def test_any_name_is_listed_and_resolved(texts: list[str]) -> None:
    entries = [delta_entry("d.b %", text, f"s3://lake/{at}") for at, text in enumerate(texts)]
    metastore = FakeMetastore(tables={"d.b %": entries})
    with serve_fake(metastore) as address, opened(address) as catalog:
        found = catalog.list(leads_to=lambda _: True, includes=lambda _: True, known_tables={})
        assert {table.name.parts for table in found.tables} == {("d.b %", text) for text in texts}
        for table in found.tables:
            assert catalog.resolve(CatalogName.parse(str(table.name))) == table


def test_a_local_path_is_not_decoded() -> None:
    entry = delta_entry("db", "t", "file:/a b%20c/ü#x/")
    with serve_fake(FakeMetastore(tables={"db": [entry]})) as address, opened(address) as catalog:
        [table] = listed(catalog).tables
    assert Address.parse(table.location).path == "/a b%20c/ü#x"


def test_a_broken_table_hides_no_other() -> None:
    def refuse(database: str, asked: Sequence[str]) -> str | None:
        return "JDOObjectNotFoundException" if "t77" in asked else None

    tables = {"db": [delta_entry("db", f"t{at}") for at in range(300)]}
    metastore = FakeMetastore(tables=tables, refuse=refuse)
    with serve_fake(metastore) as address, opened(address) as catalog:
        found = listed(catalog)
    assert len(found.tables) == 299
    [failure] = found.failures
    assert failure.where == "hms://db.t77"
    assert isinstance(failure.error, CatalogUnavailableError)


def test_a_table_without_location_hides_no_other() -> None:
    broken: Entry = {**delta_entry("db", "nowhere"), 7: {2: "file:/w/nowhere-__PLACEHOLDER__"}}
    metastore = FakeMetastore(tables={"db": [broken, delta_entry("db", "t")]})
    with serve_fake(metastore) as address, opened(address) as catalog:
        found = listed(catalog)
    assert names(found) == ["hms://db.t"]
    assert [failure.where for failure in found.failures] == ["hms://db.nowhere"]


def test_a_broken_database_hides_no_other_and_does_not_flood_the_metastore() -> None:
    def refuse(database: str, asked: Sequence[str]) -> str | None:
        return "Permission denied: user=bob" if database == "closed" else None

    entries = {name: [delta_entry(name, f"t{at}") for at in range(900)] for name in ("closed", "b")}
    metastore = FakeMetastore(tables=entries, refuse=refuse)
    with serve_fake(metastore) as address, opened(address) as catalog:
        found = listed(catalog)
    assert len(found.tables) == 900
    assert {failure.where.partition(".")[0] for failure in found.failures} == {"hms://closed"}
    error = found.failures[0].error
    assert not error.retryable and error.exit_status == 3
    assert "Permission denied: user=bob" in str(error)
    assert found.requests < 150


def test_a_lost_connection_is_made_again() -> None:
    metastore = FakeMetastore(tables={"db": [delta_entry("db", "t")]}, hang_up=2)
    with serve_fake(metastore) as address, opened(address) as catalog:
        assert names(listed(catalog)) == ["hms://db.t"]


def test_the_servers_are_tried_in_turn() -> None:
    metastore = FakeMetastore(tables={"db": [delta_entry("db", "t")]})
    with serve_fake(metastore) as address:
        both = f"thrift://127.0.0.1:{free_port()},{address}"
        with opened(both, user="alice") as catalog:
            assert names(listed(catalog)) == ["hms://db.t"]
            listed(catalog)
    assert metastore.calls.count("set_ugi") == 1


def test_a_catalog_that_is_named_is_part_of_the_names() -> None:
    metastore = FakeMetastore(tables={"db": [delta_entry("db", "t")]})
    with serve_fake(metastore) as address, opened(address, "hive") as catalog:
        assert names(listed(catalog)) == ["hms://hive.db.t"]
        assert catalog.resolve(CatalogName.parse("hms://hive.db.t")).location == "s3://lake/db/t"


def test_another_catalog_of_the_metastore_is_named_in_each_request() -> None:
    noted: dict[str, Any] = {}

    class Noting(FakeMetastore):
        def answer(self, method: str, arguments: Mapping[int, Any]) -> Mapping[int, Value]:
            noted[method] = arguments[1]
            return super().answer(method, arguments)

    metastore = Noting(tables={"db": [delta_entry("db", "t")]})
    with serve_fake(metastore) as address, opened(address, "other") as catalog:
        [table] = listed(catalog).tables
        assert catalog.resolve(table.name) == table
    assert str(table.name) == "hms://other.db.t"
    assert noted["get_table_meta"] == "@other#*"
    assert noted["get_table_objects_by_name_req"][4] == "other"
    assert noted["get_table_req"][4] == "other"


def test_no_metastore_is_an_error_that_may_pass() -> None:
    with (
        opened(f"thrift://127.0.0.1:{free_port()}") as catalog,
        pytest.raises(CatalogUnavailableError, match="Connection refused"),
    ):
        catalog.check()


def test_another_server_at_the_address_is_final() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
                # Until the client hangs up.
                while connection.recv(1024):
                    pass

        thread = threading.Thread(target=greet)
        thread.start()
        address = f"thrift://127.0.0.1:{listener.getsockname()[1]}"
        with opened(address) as catalog, pytest.raises(CatalogError, match="Thrift") as caught:
            catalog.check()
        thread.join()
    assert not isinstance(caught.value, CatalogUnavailableError)


def self_signed(folder: Path) -> Path:
    """A certificate of `localhost` with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    begin = datetime.now(UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "server.pem"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + secret)
    return file


def test_a_metastore_with_tls_is_trusted_by_its_authority_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    metastore = FakeMetastore(tables={"db": [delta_entry("db", "t")]})
    with serve_fake(metastore, context) as address:
        address = address.replace("127.0.0.1", "localhost")
        with opened(address, tls="true") as catalog:
            with pytest.raises(CatalogError, match="SSL_CERT_FILE") as caught:
                catalog.check()
            assert not isinstance(caught.value, CatalogUnavailableError)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        with opened(address, tls="Yes") as catalog:
            assert names(listed(catalog)) == ["hms://db.t"]


def test_a_metastore_that_hangs_up_may_require_kerberos() -> None:
    metastore = FakeMetastore(tables={}, hang_up=10)
    with (
        serve_fake(metastore) as address,
        opened(address) as catalog,
        pytest.raises(CatalogUnavailableError, match="Kerberos"),
    ):
        catalog.check()


def test_an_unknown_table_and_a_view_are_refused() -> None:
    view = {**delta_entry("db", "v"), 12: "VIRTUAL_VIEW"}
    with serve_fake(FakeMetastore(tables={"db": [view]})) as address, opened(address) as catalog:
        with pytest.raises(CatalogError, match="does not know hms://db.absent"):
            catalog.resolve(CatalogName.parse("hms://db.absent"))
        with pytest.raises(CatalogError, match="no Delta table"):
            catalog.resolve(CatalogName.parse("hms://db.v"))
        with pytest.raises(CatalogError, match="at most three parts"):
            catalog.resolve(CatalogName.parse("hms://a.b.c.d"))


@pytest.mark.parametrize(
    "address", [None, "", "http://host:9083", "thrift://", "thrift://u:secret@h", "thrift://h:x"]
)
def test_a_malformed_address_is_refused_and_not_repeated(address: str | None) -> None:
    with pytest.raises(InvalidRequestError, match="HIVE_METASTORE_URI") as caught:
        opened(address)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_options_that_are_not_supported_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="Kerberos"):
        opened("thrift://h", kerberos="true")
    with pytest.raises(InvalidRequestError, match="no option 'token'"):
        opened("thrift://h", token="secret")
