from __future__ import annotations

import io
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.utils import parse_timestamp

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.storage.s3 import client
from delta_maintenance.storage.s3.client import S3Options
from delta_maintenance.storage.s3.store import S3Store
from delta_maintenance.testing.store_contract import StoreContract, contend_in_processes
from tests.support.emulators.s3_server import S3Server

MIB = 1 << 20


@pytest.fixture
def store(s3_server: S3Server, s3_bucket: str) -> Iterator[S3Store]:
    store = S3Store(Address.parse(f"s3://{s3_bucket}/warehouse/table"), s3_server.storage_options)
    yield store
    store.close()


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, s3_server: S3Server, s3_bucket: str) -> Iterator[S3Store]:
        self.server = s3_server
        self.opened = [
            S3Store(Address.parse(f"s3a://{s3_bucket}/ware%20house/a b"), s3_server.storage_options)
        ]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(self, store: Store) -> Store:
        self.opened.append(S3Store(store.address, self.server.storage_options))
        return self.opened[-1]

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        bucket, _, prefix = store.root.removeprefix("s3a://").partition("/")
        self.server.fill(bucket, [f"{prefix}/{path}" for path in paths])

    def contend(self, store: Store, paths: Sequence[str]) -> list[list[Put]]:
        options = self.server.storage_options
        return contend_in_processes(partial(S3Store, store.address, options), paths)


def test_a_table_may_be_the_whole_bucket(s3_server: S3Server, s3_bucket: str) -> None:
    store = S3Store(Address.parse(f"s3://{s3_bucket}/"), s3_server.storage_options)
    assert store.root == f"s3://{s3_bucket}"
    assert store.put_if_absent("0.json", b"{}") is Put.DONE
    assert [status.path for status in store.list_from("")] == ["0.json"]
    store.close()


@pytest.mark.parametrize(
    "root", ["s3://", "s3:bucket/a", "s3:///a", "s3://user:hunter2@bucket/a", "gs://bucket/a", "/a"]
)
def test_a_malformed_address_is_refused_without_repeating_it(root: str) -> None:
    with pytest.raises(InvalidRequestError) as got:
        S3Store(Address.parse(root))
    assert "hunter2" not in str(got.value)


def test_a_large_stream_goes_up_in_parts_and_appears_at_once(
    s3_server: S3Server, s3_bucket: str
) -> None:
    store = S3Store(
        Address.parse(f"s3://{s3_bucket}/t"),
        s3_server.storage_options,
        multipart_size=6 * MIB,
        part_size=5 * MIB,
    )
    data = bytes(range(256)) * (44 * 1024)
    with store.create("x") as file:
        file.write(data)
        assert store.stat("x") is None
    assert store.read("x") == data
    assert sum("partNumber=" in request for request in s3_server.requests) == 3
    with pytest.raises(FileExistsError), store.create("x") as file:
        file.write(data[1:])
    assert store.read("x") == data
    assert any(
        request.startswith("DELETE") and "uploadId" in request for request in s3_server.requests
    )
    store.put_from("x", io.BytesIO(data[1:]))
    assert store.read("x") == data[1:]
    store.close()


def test_a_marker_of_a_folder_is_no_file(
    s3_server: S3Server, s3_bucket: str, store: S3Store
) -> None:
    prefix = "warehouse/table/_delta_log/"
    s3_server.fill(s3_bucket, [prefix, f"{prefix}0.json", f"{prefix}/slash.json"])
    found = [status.path for status in store.list_from("_delta_log")]
    assert found == ["_delta_log/0.json"]


@pytest.mark.parametrize(
    "value",
    ["2026-11-26T01:15:57.000Z", "2026-11-26T01:15:57Z", "Thu, 26 Nov 2026 01:15:57 GMT", 1.5e9],
)
def test_times_are_parsed_as_botocore_does(value: object) -> None:
    assert client._timestamp(value) == parse_timestamp(value)


def test_the_times_of_a_listing_pass_by_the_slow_parser(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[object] = []
    real = client._timestamp

    def counted(value: object) -> datetime:
        parsed.append(value)
        return real(value)

    monkeypatch.setattr(client, "_timestamp", counted)
    store = S3Store(Address.parse(f"s3://{s3_bucket}/t"), s3_server.storage_options)
    for name in ("a", "b"):
        store.put(name, b"")
    found = [store.stat(name) for name in ("a", "b")]
    parsed.clear()
    (page,) = store.list_tree()
    assert len(parsed) == 2
    assert page["modified_ms"].to_pylist() == [one.modified_ms for one in found if one is not None]
    store.close()


# Costs of operations.


def cost(server: S3Server, operation: Callable[[], object]) -> int:
    server.requests.clear()
    operation()
    return len(server.requests)


def test_listing_a_log_costs_requests_for_its_tail_only(
    s3_server: S3Server, s3_bucket: str, store: S3Store
) -> None:
    names = [f"{version:020}.json" for version in range(3_000)]
    names += [f".{name}.crc" for name in names] + [f"_staged/{name}" for name in names]
    s3_server.fill(s3_bucket, [f"warehouse/table/_delta_log/{name}" for name in names])
    for first, requests in ((2_999, 1), (2_990, 1), (2_500, 1), (2_010, 1), (1_500, 2), (0, 4)):
        found: list[str] = []

        def tail(start: str = f"{first:020}", found: list[str] = found) -> None:
            found.extend(status.path for status in store.list_from("_delta_log", start))

        assert cost(s3_server, tail) == requests
        assert len(found) == 3_000 - first


def test_single_calls_cost_single_requests(s3_server: S3Server, store: S3Store) -> None:
    # The server is probed once: two puts, one delete.
    assert cost(s3_server, lambda: store.put_if_absent("_delta_log/0.json", b"{}")) == 4
    assert cost(s3_server, lambda: store.put_if_absent("_delta_log/1.json", b"{}")) == 1
    assert cost(s3_server, lambda: store.put_if_absent("_delta_log/1.json", b"{}")) == 2
    assert cost(s3_server, lambda: store.put("hint", b"{}")) == 1
    assert cost(s3_server, lambda: store.read("hint")) == 1
    assert cost(s3_server, lambda: store.stat("hint")) == 1
    assert cost(s3_server, lambda: store.delete("hint")) == 1
    assert cost(s3_server, lambda: store.delete_many([f"x{n}" for n in range(2_001)])) == 3
    left = [status.path for status in store.list_from("_delta_log")]
    assert left == ["_delta_log/0.json", "_delta_log/1.json"]


def test_reading_some_columns_of_parquet_costs_few_requests(
    s3_server: S3Server, store: S3Store
) -> None:
    columns = {f"c{number}": pa.array(range(number, 300_000 + number)) for number in range(10)}
    table = pa.table(columns)
    with store.create("x.parquet") as sink:
        pq.write_table(table, sink, compression="none", use_dictionary=False)

    def read() -> None:
        with store.open("x.parquet") as source:
            found = pq.read_table(source, columns=["c3"])
        assert found.equals(table.select(["c3"]))

    # One for the size, one for the footer, the rest for 2.4 MB of one column.
    assert cost(s3_server, read) <= 5


# Options.


def test_the_names_of_s3fs_and_of_delta_rs_mean_the_same() -> None:
    ours = S3Options.parse(
        {"key": "K", "secret": "S", "token": "T", "endpoint_url": "https://e:1", "region": "r"}
    )
    assert ours == S3Options.parse(
        {
            "AWS_ACCESS_KEY_ID": "K",
            "aws_secret_access_key": "S",
            "AWS_SESSION_TOKEN": "T",
            "AWS_ENDPOINT_URL": "https://e:1",
            "AWS_REGION": "r",
        }
    )
    assert S3Options.parse(None) == S3Options()
    assert S3Options.parse({"AWS_SKIP_SIGNATURE": "true"}) == S3Options(anonymous=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sceret": "hunter2"}, "no storage option 'sceret'"),
        ({"key": "K"}, "both its id and its secret"),
        ({"secret": "hunter2"}, "both its id and its secret"),
        ({"region": "a", "AWS_REGION": "b"}, "contradicts"),
        ({"endpoint_url": "minio:9000"}, "not an address"),
        ({"endpoint_url": "http://me:hunter2@minio"}, "not an address"),
        ({"endpoint_url": "http://[hunter2"}, "not an address"),
        ({"endpoint_url": "http://minio", "AWS_ALLOW_HTTP": "false"}, "unencrypted"),
        ({"AWS_ALLOW_HTTP": "hunter2"}, "neither true nor false"),
    ],
)
def test_an_unknown_option_is_named_without_its_value(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as got:
        S3Options.parse(options)
    assert "hunter2" not in str(got.value)


def test_a_store_shows_and_pickles_no_secret(s3_bucket: str) -> None:
    secret = str(uuid.uuid4())
    options = {"key": "K", "secret": secret, "token": secret, "endpoint_url": "http://localhost:9"}
    store = S3Store(Address.parse(f"s3://{s3_bucket}"), options)
    for shown in (repr(store), str(store), repr(S3Options.parse(options))):
        assert secret not in shown
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(store)
