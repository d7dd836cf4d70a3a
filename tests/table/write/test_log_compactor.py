"""A written compaction is read back in pieces, and every piece is checked."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import VerificationError
from delta_maintenance.protocol.delta_log import compaction_name
from delta_maintenance.protocol.delta_log.compaction import RangeContent, content_of, single_value
from delta_maintenance.protocol.ndjson.line_buffers import PADDING, TextLines
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import list_log
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.write import log_compactor
from delta_maintenance.table.write.log_compactor import write_compaction
from tests.support.suite.play import examples
from tests.support.tables.actions import add, remove, txn
from tests.support.tables.table_builder import TableBuilder

NAME = compaction_name(0, 3)


@given(
    st.lists(st.sampled_from([b"", b"a", b"bc", b"d" * 9, b"e" * 70])).map(b"\n".join),
    st.integers(1, 40),
)
def test_the_pieces_of_a_file_are_its_lines_for_any_buffer_size(text: bytes, room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_compactor, "_BATCH_BYTES", room)
        pieces = []
        for piece in log_compactor._blocks(io.BytesIO(text), "f"):
            data = bytes(piece.data)
            assert piece.names == ("f",) and piece.sizes == (len(data) - len(PADDING),)
            assert data.endswith(b"\n" + PADDING)
            pieces.append(data[: -len(PADDING)])
    assert b"".join(pieces) == (text if not text or text.endswith(b"\n") else text + b"\n")


class DamagingStore(MemoryStore):
    """Damages a file once it is written and before anybody reads it."""

    damage = (b"", b"")

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with super().create(path) as file:
            seek = file.seek

            def after_damage(offset: int, whence: int = 0) -> int:
                seek(0)
                data = file.read()
                assert self.damage[0] in data
                seek(0)
                file.truncate()
                file.write(data.replace(*self.damage, 1))
                return seek(offset, whence)

            file.seek = after_damage  # type: ignore[method-assign]  # one file only
            yield file


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ((b'"size":1', b'"size":2'), "its bytes differ from those that were written"),
        ((b'{"add":{"path":"b"', b'{"add":{"path":"B"'), "its bytes differ"),
        ((b'"txn":{', b'"txn":'), "not valid JSON"),
    ],
)
def test_one_damaged_byte_keeps_a_compaction_from_being_published(
    monkeypatch: pytest.MonkeyPatch, damage: tuple[bytes, bytes], problem: str
) -> None:
    table = TableBuilder()
    for commit in ([add("a")], [add("b"), txn("app", 1)], [remove("a")], [add("c")]):
        table.commit(commit)
    store = DamagingStore()
    for path in [status.path for status in table.store.list_from(LOG_DIRECTORY)]:
        store.put(path, table.store.read(path))
    commits = list(list_log(store).commits.values())
    store.damage = damage
    with pytest.raises(VerificationError, match=problem):
        write_compaction(store, commits, NAME)
    assert store.stat(f"{LOG_DIRECTORY}/{NAME}") is None
    store.damage = (b"", b"")
    written = write_compaction(store, commits, NAME)
    assert written is not None and (written.content.adds, written.content.removes) == (2, 1)


@pytest.mark.parametrize("checked", ["keys", "counts", "singles"])
def test_content_is_compared_where_the_bytes_agree(
    monkeypatch: pytest.MonkeyPatch, checked: str
) -> None:
    """A line that got lost before it was written has left its mark in no checksum."""
    table = TableBuilder()
    table.commit([add("a"), txn("app", 1)])
    table.commit([add("b")])

    def other(text: TextLines) -> RangeContent:
        content = content_of(text)
        match checked:
            case "keys":
                content.keys += 1
            case "counts":
                content.adds -= 1
            case "singles":
                content.singles.clear()
        return content

    monkeypatch.setattr(log_compactor, "content_of", other)
    with pytest.raises(VerificationError, match="reads back differently"):
        write_compaction(table.store, list(list_log(table.store).commits.values()), NAME)


@given(st.data())
@settings(max_examples=examples(40))
def test_batches_of_any_size_give_the_same_result(data: st.DataObject) -> None:
    """Their room is used again while others are under way."""
    table = TableBuilder()
    paths = st.sampled_from([f"{name * 7}.parquet" for name in "abcdefgh"])
    for version in range(data.draw(st.integers(4, 30))):
        files = data.draw(st.lists(paths, unique=True, max_size=4))
        kinds = [data.draw(st.sampled_from([add, remove])) for _ in files]
        table.commit([txn("app", version), *(k(f) for k, f in zip(kinds, files, strict=True))])
    commits = list(list_log(table.store).commits.values())
    path = f"{LOG_DIRECTORY}/{compaction_name(0, len(commits) - 1)}"
    found = []
    for room in (log_compactor._BATCH_BYTES, data.draw(st.integers(1, 1500))):
        table.store.delete(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_compactor, "_BATCH_BYTES", room)
            written = write_compaction(table.store, commits, path.rpartition("/")[2])
        assert written is not None
        found.append((written, sorted(table.store.read(path).splitlines())))
    assert found[0] == found[1]


def test_a_null_field_is_the_same_as_a_missing_one() -> None:
    written = b'{"metaData":{"id":"t","name":null,"format":{"provider":"parquet","x":null}}}'
    omitted = b'{"metaData":{"id":"t","format":{"provider":"parquet"}}}'
    assert single_value(written) == single_value(omitted)
    assert single_value(written) != single_value(omitted.replace(b"parquet", b"orc"))
