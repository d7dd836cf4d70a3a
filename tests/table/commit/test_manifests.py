"""Symlink manifests after commits: they name exactly the live files, as those of Delta Spark do."""

from __future__ import annotations

import logging
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.address import Address
from delta_maintenance.errors import StorageError
from delta_maintenance.operations import set_properties
from delta_maintenance.operations.fsck import FsckOptions
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.vacuum.held_files import files_in_manifests
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.storage.s3 import S3Store
from delta_maintenance.table.commit.manifests import MANIFESTS, write_manifests
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.read import log_file, log_reader
from tests.support.emulators.s3_server import S3Server
from tests.support.operations.fsck_runs import REPAIR, outcomes, run
from tests.support.suite.play import examples
from tests.support.tables.actions import (
    Action,
    add,
    deletion_vector,
    features,
    metadata,
    protocol,
    remove,
)
from tests.support.tables.table_builder import TableBuilder

PROPERTY = "delta.compatibility.symlinkFormatManifest.enabled"
ESCAPED_BY_SPARK = set("\"#%'*/:=?\\{[]^\x7f") | set(map(chr, range(1, 0x20)))
VALUES = ["1", "a b", "x/y", "ü", None, "", "50%", "a=b:c", "{[^]}", "it's", "C:\\d\t", "+&~"]
Partition = tuple[str | None, ...]


def spark_folder(columns: tuple[str, ...], values: Partition) -> str:
    """The folder of a partition, by the rules of Spark's `ExternalCatalogUtils`."""

    def escaped(text: str) -> str:
        return "".join(f"%{ord(c):02X}" if c in ESCAPED_BY_SPARK else c for c in text)

    named = zip(columns, values, strict=True)
    return "/".join(
        f"{escaped(c)}={escaped(v) if v else '__HIVE_DEFAULT_PARTITION__'}" for c, v in named
    )


def manifests_in(store: Store) -> dict[str, list[str]]:
    """The lines of each manifest, by its folder below that of the manifests."""
    found = {}
    for batch in store.list_tree(MANIFESTS):
        for path, kind in zip(batch["path"].to_pylist(), batch["kind"].to_pylist(), strict=True):
            if kind == 0 and not path.endswith("/"):
                text = store.read(path).decode()
                assert not text or text.endswith("\n")
                folder, _, name = path.removeprefix(MANIFESTS).rpartition("/")
                assert name == "manifest"
                found[folder.removeprefix("/")] = sorted(text.splitlines())
    return found


class Manifested:
    """A table with manifests whose files are entries of its log only."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        columns: tuple[str, ...] = ("p",),
        enabled: bool = True,
        first: Action | None = None,
    ) -> None:
        self.builder = TableBuilder(store or Addressed())
        self.store = self.builder.store
        self.columns = columns
        self.root = f"{self.store.address}/"
        self.live: dict[str, Partition] = {}
        configuration = {PROPERTY: "true"} if enabled else {}
        self.builder.commit(
            [first or protocol(), metadata(partitioned_by=columns, configuration=configuration)]
        )

    def add(self, name: str, *values: str | None, **fields: Any) -> Action:
        """The add of a new file, with a name as it is in the store."""
        self.live[name] = values
        partition = dict(zip(self.columns, values, strict=True))
        return add(quote(name), partitionValues=partition, **fields)

    def remove(self, name: str) -> Action:
        values = self.live.pop(name)
        partition = dict(zip(self.columns, values, strict=True))
        return remove(quote(name), partitionValues=partition, extendedFileMetadata=True)

    def transaction(self, *actions: Action) -> Transaction:
        transaction = Transaction(
            self.builder.open().snapshot(), "TEST", writer=Writer(other_writers="none")
        )
        transaction.read_whole_table()
        transaction.stage_adds([action["add"] for action in actions if "add" in action])
        transaction.stage_removes([a["remove"] for a in actions if "remove" in a])
        return transaction

    def commit(self, *actions: Action) -> Landed:
        """A commit by the library."""
        outcome = self.transaction(*actions).commit()
        assert isinstance(outcome, Landed)
        self.builder.commits[outcome.version] = []
        return outcome

    def expected(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        if not self.columns:
            found[""] = []
        for name, values in self.live.items():
            found[spark_folder(self.columns, values)].append(self.root + name)
        return {folder: sorted(lines) for folder, lines in found.items()}


@st.composite
def histories(draw: st.DrawFn) -> tuple[tuple[str, ...], list[list[tuple[str, Any]]]]:
    """Partition columns, and the changes of each commit."""
    columns = draw(st.sampled_from([(), ("p",), ("p", "_q=%")]))
    values = st.tuples(*(st.sampled_from(VALUES) for _ in columns))
    change = st.one_of(
        st.tuples(st.just("add"), values), st.tuples(st.just("remove"), st.integers(0, 9))
    )
    commits = draw(st.lists(st.lists(change, min_size=1, max_size=4), min_size=1, max_size=5))
    return columns, commits


@settings(max_examples=examples(40))
@given(history=histories())
def test_manifests_name_the_live_files_after_each_commit(
    history: tuple[tuple[str, ...], list[list[tuple[str, Any]]]],
) -> None:
    columns, commits = history
    table = Manifested(columns=columns)
    number = 0
    for changes in commits:
        actions, removable = [], sorted(table.live)
        for kind, what in changes:
            number += 1
            if kind == "add":
                actions.append(table.add(f"ü {number}%.parquet", *what))
            elif removable:
                actions.append(table.remove(removable.pop(what % len(removable))))
        if actions:
            table.commit(*actions)
            assert manifests_in(table.store) == table.expected()
    assert missing_only(table)


def missing_only(table: Manifested) -> bool:
    """Whether `fsck` finds nothing but data files that were never written."""
    kinds = {count.kind for count in run(table.builder.open()).counts}
    return kinds <= {"missing-data-file", "missing-removed-file"}


def test_removes_without_partition_values_and_a_partition_that_ends() -> None:
    table = Manifested()
    table.commit(table.add("a", "1"), table.add("b", "2"))
    gone = table.remove("a")
    del gone["remove"]["partitionValues"]
    table.commit(gone)
    assert manifests_in(table.store) == table.expected() == {"p=2": [f"{table.root}b"]}


def test_only_the_manifests_of_touched_partitions_are_written() -> None:
    table = Manifested()
    table.commit(table.add("a", "1"), table.add("b", "2"))
    table.store.put(f"{MANIFESTS}/p=1/manifest", b"untouched\n")
    table.commit(table.add("c", "2"))
    assert manifests_in(table.store) == {**table.expected(), "p=1": ["untouched"]}


def test_the_property_decides_and_begins_with_all_manifests() -> None:
    table = Manifested(enabled=False)
    table.commit(table.add("a", "1"), table.add("b", None))
    assert manifests_in(table.store) == {}
    opened = table.builder.open()
    options = SetPropertiesOptions(properties={PROPERTY: "true"})
    set_properties.apply(opened, set_properties.plan(opened.snapshot(), options))
    assert manifests_in(table.store) == table.expected()


@pytest.mark.parametrize("root", ["s3a://b/t/", "s3://b/t/"])
def test_lines_have_the_address_of_the_manifests_that_exist(root: str) -> None:
    table = Manifested(Addressed("s3://b/t"))
    table.builder.commit([table.add("a", "1")])
    table.store.put(f"{MANIFESTS}/p=1/manifest", f"{root}a\n".encode())
    table.root = root
    table.commit(table.add("b", "2"))
    table.commit(table.add("c", "1"))
    assert manifests_in(table.store) == table.expected()


def test_files_outside_the_root_have_their_own_addresses() -> None:
    table = Manifested(columns=())
    outside = ["s3://other/x%20y.parquet", "file:///tmp/z.parquet"]
    table.commit(*(add(path) for path in outside))
    assert manifests_in(table.store) == {"": ["file:/tmp/z.parquet", "s3://other/x y.parquet"]}
    assert missing_only(table)


def test_a_commit_during_the_writing_is_not_lost() -> None:
    """Whoever writes a manifest last may have read an older version than another writer."""
    store = Addressed()
    table = Manifested(store)
    table.commit(table.add("a", "1"))
    store.before_put = lambda: table.builder.commit([table.add("b", "1")], version=3)
    table.commit(table.add("c", "1"))
    assert manifests_in(store) == table.expected()
    assert len(table.expected()["p=1"]) == 3


def test_a_failure_leaves_a_finding_whose_remedy_writes_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Addressed()
    table = Manifested(store)
    table.commit(table.add("a", "1"), table.add("b", "2"))
    store.before_put = fail
    with caplog.at_level(logging.WARNING):
        table.commit(table.add("c", "1"))
    assert "run fsck" in caplog.text and "full disk" in caplog.text
    [finding] = [f for f in run(table.builder.open()).findings if "manifest" in f.kind]
    assert (finding.kind, finding.path) == ("stale-manifest", f"{MANIFESTS}/p=1/manifest")
    assert "fsck --repair" in finding.remedy
    result = run(table.builder.open(), REPAIR)
    assert outcomes(result) == {"write-manifests": "done"}
    assert manifests_in(store) == table.expected()
    assert missing_only(table)


@pytest.mark.parametrize(
    "text",
    ["{root}a\n{root}a\n", "{root}a\n{root}gone\n", "", "\xff\n", "nonsense"],
    ids=["twice", "removed", "empty", "bytes", "nonsense"],
)
def test_fsck_finds_every_difference(text: str) -> None:
    table = Manifested()
    table.commit(table.add("a", "1"))
    data = text.format(root=table.root).encode("latin-1")
    table.store.put(f"{MANIFESTS}/p=1/manifest", data)
    assert "stale-manifest" in {count.kind for count in run(table.builder.open()).counts}
    run(table.builder.open(), REPAIR)
    assert manifests_in(table.store) == table.expected()


def test_manifests_without_the_property_are_a_note_with_a_remedy() -> None:
    table = Manifested(enabled=False)
    table.builder.commit([table.add("a", "1")])
    opened = table.builder.open()
    write_manifests(opened.snapshot())
    assert missing_only(table)
    table.builder.commit([table.add("b", "2")])
    [finding] = [f for f in run(opened).findings if f.kind == "old-manifest"]
    assert finding.severity == "note" and PROPERTY in finding.remedy
    assert run(opened, REPAIR).repairs == ()
    options = SetPropertiesOptions(properties={PROPERTY: "true"})
    set_properties.apply(opened, set_properties.plan(opened.snapshot(), options))
    assert manifests_in(table.store) == table.expected()
    assert missing_only(table)


def test_partitions_with_deletion_vectors_are_left_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = Manifested(first=features("deletionVectors"))
    table.builder.commit([table.add("a", "1", dv=deletion_vector("x", storage_type="i"))])
    table.builder.commit([table.add("b", "2")])
    with caplog.at_level(logging.WARNING):
        table.commit(table.add("c", "2"))
    assert "run purge" in caplog.text
    assert set(manifests_in(table.store)) == {"p=2"}
    kinds = {f.kind: f for f in run(table.builder.open(), FsckOptions()).findings}
    assert kinds["unwritable-manifest"].path == f"{MANIFESTS}/p=1/manifest"
    assert "stale-manifest" not in kinds


def test_a_store_of_objects_and_an_empty_table(s3_server: S3Server) -> None:
    s3_server.make_bucket("manifests")
    address = Address.parse("s3a://manifests/t")
    for columns in ((), ("p",)):
        table = Manifested(S3Store(address, s3_server.storage_options), columns=columns)
        values = ("x/ y",) if columns else ()
        for change in (table.add, table.remove, table.add):
            # Delta Spark leaves such markers of folders.
            s3_server.fill("manifests", [f"t/{MANIFESTS}/", f"t/{MANIFESTS}/p=x%2F y/"])
            table.commit(change("a b", *(values if change == table.add else ())))
            assert manifests_in(table.store) == table.expected()
            assert missing_only(table)
            assert len([*files_in_manifests(table.store)]) == len(table.live)
        for page in table.store.list_tree():
            table.store.delete_many(p for p in page["path"].to_pylist() if p[-1] != "/")
        table.store.close()


@pytest.mark.parametrize("columns", [(), ("p",)], ids=["whole", "partitioned"])
def test_writing_takes_the_memory_of_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...]
) -> None:
    monkeypatch.setattr(log_reader, "_NARROW_BATCH_BYTES", 1 << 16)
    monkeypatch.setattr(log_file, "_READ_AHEAD_BYTES", 1 << 16)
    table = Manifested(LocalStore(str(tmp_path)), columns=columns)
    for version in range(50):
        names = [f"{version}-{number}-{'x' * 900}" for number in range(100)]
        table.builder.commit([table.add(name, *("1" for _ in columns)) for name in names])
    opened = table.builder.open().snapshot()
    scan = {"add": ("path", "deletionVector", "partitionValues"), "remove": ()}

    def read() -> None:
        assert sum(batch.adds.num_rows for batch in opened.log.scan(fields=scan)) == 5000

    read()
    peak_of_scan, peak = peak_of(read), peak_of(lambda: write_manifests(opened))
    [manifest] = tmp_path.joinpath(MANIFESTS).rglob("manifest")
    assert peak < peak_of_scan + manifest.stat().st_size / 4
    table.root = f"file:{tmp_path}/"
    assert manifests_in(table.store) == table.expected()


def peak_of(work: Callable[[], Any]) -> int:
    """The bytes of Python and Arrow that some work holds at most."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


class Addressed(MemoryStore):
    """A store with an address of its own, which may fail before a manifest is written."""

    def __init__(self, address: str = "memory://lake/t") -> None:
        super().__init__()
        self.address = Address.parse(address)
        self.before_put: Callable[[], Any] | None = None
        """Called once, before the next manifest is written."""

    def put(self, path: str, data: bytes) -> None:
        if path.startswith(MANIFESTS) and self.before_put is not None:
            before, self.before_put = self.before_put, None
            before()
        super().put(path, data)


def fail() -> None:
    raise StorageError("full disk")


@pytest.fixture(autouse=True)
def _loggers_pass_on() -> Iterator[None]:
    logger = logging.getLogger("delta_maintenance")
    before, logger.propagate = logger.propagate, True
    yield
    logger.propagate = before
