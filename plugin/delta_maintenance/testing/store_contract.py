"""The contract of every store, as a suite of pytest tests.

Derive a test class from `StoreContract` and give it a `store` fixture. It needs `pytest`.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.core.base import Put, Store
from delta_maintenance.storage.core.listing import EntryKind

LOG = "_delta_log"
CONTENDERS = 8
PATIENCE_SECONDS = 600
"""The time limit for the slowest contender of a race, sufficient on a busy machine."""
ODD_NAMES = (
    "with blank",
    "50%",
    "%20",
    "%2e%2e",
    "a#b",
    "1+1",
    "what?",
    "x?versionId=1abc",
    "x?versionid=1abc",
    "x#123",
    "über",
    "u\u0308ber",
    "日本語",
    "𝄞.json",
    "[1]",
    "*",
    "x*y",
    "{a,b}",
    "~",
    'it\'s "quoted"',
    "a&b=c;d",
    "a:b",
    ".hidden",
    "...",
    "-",
)
UNCLEAN_PATHS = (
    "",
    "/",
    "/etc/passwd",
    "a/",
    "a//b",
    ".",
    "..",
    "./a",
    "a/./b",
    "../a",
    "a/../b",
    "a/..",
    "a\\b",
    "..\\a",
    "nul\x00",
    "line\nbreak",
    "\x7f",
    "lone\udc80surrogate",
)


class StoreContract:
    """The guarantees of `Store`, each as one test."""

    entries = 10_000
    """The length of a long log. Listing it should take several requests."""
    doomed = 1_100
    """The number of files that are deleted at once. Deleting them should take several requests."""
    races = int(os.environ.get("DELTA_MAINTENANCE_RACES", "25"))
    """The number of files for which `CONTENDERS` writers race."""
    refused_names: frozenset[str] = frozenset()
    """Those of `ODD_NAMES` that the store does not support and must refuse."""

    @pytest.fixture
    def store(self) -> Store:
        """A store over an empty root. To be overridden."""
        raise NotImplementedError("derive a class with a fixture named store")

    def reopen(self, store: Store) -> Store:
        """Opens another store over the same root, as another process would."""
        return store

    def fill(self, store: Store, paths: Iterable[str]) -> None:
        """Creates many files, in any way."""
        for path in paths:
            store.put(path, b"")

    def contend(self, store: Store, paths: Sequence[str]) -> list[list[Put]]:
        """Lets `CONTENDERS` writers put their own bytes at each path at the same moment.

        Returns the outcomes of each contender. By default in threads; use `contend_in_processes`
        for stores that several processes can open.
        """
        starting = threading.Barrier(CONTENDERS, timeout=PATIENCE_SECONDS)
        with ThreadPoolExecutor(CONTENDERS) as pool:
            tasks = [
                pool.submit(race, self.reopen(store), paths, contender, starting)
                for contender in range(CONTENDERS)
            ]
            return [task.result() for task in tasks]

    # Reading.

    def test_a_file_reads_back_as_it_was_written(self, store: Store) -> None:
        data = bytes(range(256)) * 1000
        store.put("part=1/x.parquet", data)
        assert store.read("part=1/x.parquet") == data
        status = store.stat("part=1/x.parquet")
        assert status is not None
        assert (status.path, status.size) == ("part=1/x.parquet", len(data))
        assert status == next(store.list_from("part=1"))

    def test_where_there_is_no_file_there_is_nothing_to_read(self, store: Store) -> None:
        store.put("a/b", b"x")
        for path in ("nothing", "a", "a/c", "a/b/c", "no/such/directory"):
            assert store.stat(path) is None
            with pytest.raises(FileNotFoundError):
                store.read(path)
            with pytest.raises(FileNotFoundError):
                store.open(path)

    def test_the_head_of_a_file_is_as_much_as_there_is(self, store: Store) -> None:
        store.put("a", bytes(range(100)))
        store.put("empty", b"")
        assert store.read_head("a", 10) == bytes(range(10))
        assert store.read_head("a", 1000) == bytes(range(100))
        assert store.read_head("empty", 10) == b""
        with pytest.raises(FileNotFoundError):
            store.read_head("b", 10)

    def test_an_open_file_gives_random_access(self, store: Store) -> None:
        data = (bytes(range(251)) * 12_000)[:3_000_000]
        store.put("x", data)
        with store.open("x") as file:
            assert file.readable() and file.seekable()
            assert file.seek(-8, io.SEEK_END) == len(data) - 8
            assert file.read() == data[-8:]
            assert file.read(1) == b""
            file.seek(5)
            assert file.read(10) == data[5:15]
            assert file.tell() == 15
            file.seek(1_000_000)
            assert file.read(1_500_000) == data[1_000_000:2_500_000]
            file.seek(0)
            assert file.read() == data

    # Creating.

    def test_a_put_if_absent_creates_the_file_and_its_directories(self, store: Store) -> None:
        assert store.put_if_absent("a/b/c/0.json", b"{}") is Put.DONE
        assert store.read("a/b/c/0.json") == b"{}"

    @pytest.mark.parametrize("second", [b"second", b"first", b""])
    def test_a_put_if_absent_leaves_an_existing_file_alone(
        self, store: Store, second: bytes
    ) -> None:
        assert store.put_if_absent("0.json", b"first") is Put.DONE
        assert self.reopen(store).put_if_absent("0.json", second) is Put.EXISTS
        assert store.read("0.json") == b"first"

    def test_an_empty_file_counts_as_existing(self, store: Store) -> None:
        assert store.put_if_absent("0.json", b"") is Put.DONE
        assert store.put_if_absent("0.json", b"") is Put.EXISTS
        assert store.put_if_absent("0.json", b"later") is Put.EXISTS
        assert store.read("0.json") == b""

    def test_a_put_if_absent_works_again_after_a_delete(self, store: Store) -> None:
        assert store.put_if_absent("0.json", b"one") is Put.DONE
        store.delete("0.json")
        assert store.put_if_absent("0.json", b"two") is Put.DONE
        assert store.read("0.json") == b"two"

    def test_of_those_who_race_for_a_file_exactly_one_wins(self, store: Store) -> None:
        paths = [f"{LOG}/{version:020}.json" for version in range(self.races)]
        begin = time.perf_counter()
        outcomes = self.contend(store, paths)
        seconds = time.perf_counter() - begin
        answers = dict(zip(paths, zip(*outcomes, strict=True), strict=True))
        winners = Counter(answers[path].count(Put.DONE) for path in paths)
        puts = Counter(put.name for row in outcomes for put in row)
        # `pytest -rP` shows this for the record of a long run.
        print(
            f"{self.races} races of {CONTENDERS} contenders in {seconds:.0f} s; races by number of "
            f"winners: {dict(winners)}; puts: {dict(puts)}; races won by each contender: "
            f"{[row.count(Put.DONE) for row in outcomes]}"
        )
        assert winners == {1: self.races}, [
            path for path in paths if answers[path].count(Put.DONE) != 1
        ][:10]
        for path in paths:
            assert store.read(path) == contribution(path, answers[path].index(Put.DONE)), path

    def test_a_put_replaces_a_file_whole(self, store: Store) -> None:
        store.put("hint", b"a longer first text")
        store.put("hint", b"short")
        assert store.read("hint") == b"short"
        for data in (bytes(range(251)) * 12_000, b"", b"last"):
            source = io.BytesIO(data)
            source.seek(0, io.SEEK_END)
            store.put_from("hint", source)
            assert store.read("hint") == data

    # Streaming.

    def test_a_stream_becomes_visible_when_its_block_ends(self, store: Store) -> None:
        with store.create("a/x.parquet") as file:
            file.write(b"one ")
            file.flush()
            assert store.stat("a/x.parquet") is None
            file.write(b"two")
        assert store.read("a/x.parquet") == b"one two"
        assert [status.path for status in store.list_from("a")] == ["a/x.parquet"]

    def test_a_block_may_read_back_what_it_wrote(self, store: Store) -> None:
        with store.create("x") as file:
            file.write(b"data" * 5000)
            assert file.tell() == 20_000
            file.seek(0)
            assert file.read(19_998) == (b"data" * 5000)[:-2]
            file.seek(0)
        assert store.read("x") == b"data" * 5000

    def test_a_block_may_close_its_stream(self, store: Store) -> None:
        with store.create("x") as file:
            file.write(b"data")
            file.close()
        assert store.read("x") == b"data"

    def test_an_empty_stream_is_an_empty_file(self, store: Store) -> None:
        with store.create("x"):
            pass
        assert store.read("x") == b""

    def test_a_stream_whose_block_raises_leaves_nothing(self, store: Store) -> None:
        # An error of the block is not converted, even if it looks like one of the store.
        with pytest.raises(FileNotFoundError, match="mine"), store.create("a/x") as file:
            file.write(b"half")
            raise FileNotFoundError("mine")
        assert store.stat("a/x") is None
        assert list(store.list_from("a")) == []

    def test_a_stream_never_replaces_a_file(self, store: Store) -> None:
        with pytest.raises(FileExistsError), store.create("x") as file:
            file.write(b"late")
            assert store.put_if_absent("x", b"early") is Put.DONE
        assert store.read("x") == b"early"
        assert [status.path for status in store.list_from("")] == ["x"]

    # Listing.

    def test_a_listing_starts_where_it_is_told_and_leaves_out_directories(
        self, store: Store
    ) -> None:
        self.fill(store, [f"log/{name}" for name in ("b", "a", "c", "b.1", "b2/x", "ba/y", "A")])
        self.fill(store, ["logs", "log2/z", "other"])

        def list_paths(start: str) -> list[str]:
            return [status.path for status in store.list_from("log", start)]

        assert list_paths("") == ["log/A", "log/a", "log/b", "log/b.1", "log/c"]
        assert list_paths("b") == ["log/b", "log/b.1", "log/c"]
        assert list_paths("b!") == ["log/b.1", "log/c"]
        assert list_paths("b.0") == ["log/b.1", "log/c"]
        assert list_paths("d") == []
        assert [status.path for status in store.list_from("")] == ["logs", "other"]

    def test_a_directory_that_does_not_exist_is_empty(self, store: Store) -> None:
        self.fill(store, ["logs/x"])
        for directory in ("", "log", "no/such", "logs/x"):
            assert list(store.list_from(directory)) == []

    def test_a_long_log_is_listed_in_full_and_in_part(self, store: Store) -> None:
        names = [f"{version:020}.json" for version in range(self.entries)]
        self.fill(store, [f"{LOG}/{name}" for name in names])
        for first in (0, self.entries // 3, self.entries - 10, self.entries - 1):
            found = [status.path for status in store.list_from(LOG, names[first])]
            assert found == [f"{LOG}/{name}" for name in names[first:]]

    def test_levels_add_up_to_the_tree(self, store: Store) -> None:
        """For stores that distinguish files from directories; the others return None for every
        level.
        """
        folders = [f"p={number:04}" for number in range(self.entries // 10)]
        names = [f"{folder}/x" for folder in folders]
        deep = ["x", "a b/%20/y", "a b/z", "p=0000/q/\u00fcber/x", "p=0000.parquet"]
        self.fill(store, [*names, *deep])
        if store.list_level() is None:
            assert store.list_level("p=0000") is None
            return
        root = self._level(store, "")
        assert root[EntryKind.FILE] == ["p=0000.parquet", "x"]
        assert root[EntryKind.DIRECTORY] == sorted(["a b", *folders])
        files, waiting = [], [""]
        for directory in waiting:
            if directory in folders[1:]:
                continue
            level = self._level(store, directory)
            files += level[EntryKind.FILE]
            waiting += level[EntryKind.DIRECTORY]
        assert sorted(files) == sorted(["p=0000/x", *deep])
        assert self._level(store, "nothing/here") == {kind: [] for kind in EntryKind}

    def _level(self, store: Store, directory: str) -> dict[EntryKind, list[str]]:
        level = store.list_level(directory)
        assert level is not None
        found: dict[EntryKind, list[str]] = {kind: [] for kind in EntryKind}
        for row in level.to_pylist():
            # The content of a directory may include the directory itself.
            if row["path"] != directory:
                found[EntryKind(row["kind"])].append(row["path"])
        return {kind: sorted(paths) for kind, paths in found.items()}

    def test_a_listing_sees_what_was_just_written_and_deleted(self, store: Store) -> None:
        assert list(store.list_from(LOG)) == []
        store.put_if_absent(f"{LOG}/0.json", b"0")
        assert [status.size for status in self.reopen(store).list_from(LOG)] == [1]
        self.reopen(store).delete(f"{LOG}/0.json")
        assert list(store.list_from(LOG)) == []

    # Deleting.

    def test_a_delete_removes_exactly_one_file(self, store: Store) -> None:
        self.fill(store, ["x", "x1", "xx", "x.crc", ".x.crc", "a/x"])
        store.delete("x")
        store.delete("x")
        store.delete("no/such/file")
        assert [status.path for status in store.list_from("")] == [".x.crc", "x.crc", "x1", "xx"]
        assert store.stat("a/x") is not None

    def test_many_files_are_deleted_at_once(self, store: Store) -> None:
        self.fill(store, [f"d/{number:04}" for number in range(self.doomed)])
        gone = [f"d/{number:04}" for number in range(self.doomed) if number != 7]
        assert store.delete_many([*gone, "d/never there"]) == {}
        assert [status.path for status in store.list_from("d")] == ["d/0007"]
        assert store.delete_many([]) == {}

    # Names.

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_a_name_means_itself(self, store: Store, name: str) -> None:
        if name in self.refused_names:
            for call in (store.put, store.put_if_absent):
                with pytest.raises(InvalidRequestError):
                    call(name, b"")
            assert store.stat(name) is None
            assert list(store.list_from("")) == []
            return
        neighbours = ["1", "x", "xLIVEy", "a", "b", "what", "a b", " ", "uber"]
        self.fill(store, [f"col={name}/{other}" for other in neighbours])
        path = f"col={name}/{name}"
        assert store.put_if_absent(path, b"mine") is Put.DONE
        assert store.put_if_absent(path, b"other") is Put.EXISTS
        with store.create(f"{path}.2") as file:
            file.write(b"streamed")
        assert store.read(path) == b"mine"
        with store.open(path) as file:
            assert file.read() == b"mine"
        status = store.stat(path)
        assert status is not None and status.path == path
        assert next(store.list_from(f"col={name}", name)).path == path
        store.put(path, b"mine 2")
        store.delete(path)
        left = {status.path for status in store.list_from(f"col={name}")}
        assert left == {f"col={name}/{other}" for other in (*neighbours, f"{name}.2")}
        store.delete(f"{path}.2")
        for other in neighbours:
            assert store.read(f"col={name}/{other}") == b""

    @pytest.mark.parametrize("path", UNCLEAN_PATHS)
    def test_an_unclean_path_is_refused_by_every_call(self, store: Store, path: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.stat(path),
            lambda: store.read(path),
            lambda: store.open(path),
            lambda: store.put(path, b""),
            lambda: store.put_if_absent(path, b""),
            lambda: store.create(path).__enter__(),
            lambda: store.delete(path),
            lambda: store.delete_many(["good", path]),
        ]
        if path:
            calls.append(lambda: store.list_from(path))
            calls.append(lambda: store.list_from(f"a/{path}"))
        store.put("good", b"")
        for call in calls:
            with pytest.raises(InvalidRequestError):
                call()
        assert store.stat("good") is not None

    def test_a_listing_starts_at_a_bare_name_only(self, store: Store) -> None:
        for start in ("a/b", "/", "\x00"):
            with pytest.raises(InvalidRequestError):
                store.list_from(LOG, start)


def contribution(path: str, contender: int) -> bytes:
    """Returns what a contender writes: always of one length, so that only the bytes identify it."""
    return f"{path} by {contender:04}\n".encode() * 50


def race(
    store: Store, paths: Sequence[str], contender: int, starting: threading.Barrier
) -> list[Put]:
    """Runs one contender, which waits for the others before each path. Returns the outcomes in that
    order.

    An error ends the race for all contenders.
    """
    outcomes = []
    try:
        for path in paths:
            starting.wait()
            outcomes.append(store.put_if_absent(path, contribution(path, contender)))
    except BaseException:
        starting.abort()
        raise
    return outcomes


def contend_in_processes(open_one: Callable[[], Store], paths: Sequence[str]) -> list[list[Put]]:
    """Like `StoreContract.contend`, with a process for each contender.

    Each opens its own store with `open_one`, which must be picklable.
    """
    processes = multiprocessing.get_context("forkserver")
    # Loaded once in the fork server; packages that are not installed are skipped.
    processes.set_forkserver_preload([__name__, "s3fs", "google.auth", "azure.identity"])
    starting = processes.Barrier(CONTENDERS, timeout=PATIENCE_SECONDS)
    receivers, contenders = [], []
    for contender in range(CONTENDERS):
        receiver, sender = processes.Pipe(duplex=False)
        process = processes.Process(
            target=_report, args=(sender, open_one, paths, contender, starting)
        )
        process.start()
        sender.close()
        receivers.append(receiver)
        contenders.append(process)
    reports: list[list[Put] | str] = []
    for receiver, process in zip(receivers, contenders, strict=True):
        with receiver:
            reports.append(receiver.recv())
        process.join()
        process.close()
    # The error that ended the race, not those of the contenders that waited for it.
    broken = sorted((said for said in reports if isinstance(said, str)), key=_is_aftermath)
    assert not broken, broken[0]
    return [report for report in reports if not isinstance(report, str)]


def _is_aftermath(said: str) -> bool:
    return said.startswith(threading.BrokenBarrierError.__name__)


def _report(
    sender: Connection,
    open_one: Callable[[], Store],
    paths: Sequence[str],
    contender: int,
    starting: threading.Barrier,
) -> None:
    with sender:
        try:
            store = open_one()
            report: list[Put] | str = race(store, paths, contender, starting)
            store.close()
        except Exception as error:
            starting.abort()
            report = f"{type(error).__name__}: {error}"
        sender.send(report)
