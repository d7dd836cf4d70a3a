"""Log replay: hashes only narrow the search; the key decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from delta_maintenance.protocol.columns import hash_texts
from delta_maintenance.protocol.delta_log.replay import FileReplay, Hashes, StateReplay

HASHES: dict[str, Callable[[pa.StringArray], Hashes]] = {
    "real": hash_texts,
    "constant": lambda texts: np.zeros(len(texts), np.uint64),
    "four values": lambda texts: hash_texts(texts) % np.uint64(4),
    "last byte": lambda texts: np.array(
        [ord(text[-1:] or "\0") for text in texts.to_pylist()], np.uint64
    ),
    "two keys alike": lambda texts: np.where(
        [text in ("a", "\0") for text in texts.to_pylist()], np.uint64(7), hash_texts(texts)
    ),
}
KEYS = st.sampled_from(["", "a", "b", "ab", "\0", "a\0", "é", "x" * 8, "x" * 9, "x" * 17, "u\0a"])
BATCHES = st.lists(st.lists(KEYS, max_size=12), max_size=12)


def standing(batch: list[str], order: list[int], seen: set[str]) -> set[int]:
    """The surviving rows of a batch, found key by key."""
    stands = set()
    for row in order:
        if batch[row] not in seen:
            seen.add(batch[row])
            stands.add(row)
    return stands


@pytest.mark.conformance("REC-04")
@pytest.mark.parametrize("hashing", HASHES)
@given(batches=BATCHES, data=st.data())
def test_survivors_do_not_depend_on_the_hash_function(
    hashing: str, batches: list[list[str]], data: st.DataObject
) -> None:
    replay, seen = FileReplay(hash_keys=HASHES[hashing]), set[str]()
    for batch in batches:
        order = data.draw(st.permutations(range(len(batch))))
        # Rows before and after the slice, which must be ignored.
        keys = pa.array(["before", *batch, "behind"]).slice(1, len(batch))
        found = replay.surviving(keys, order=np.array(order, np.int64))
        assert sorted(found.tolist()) == sorted(standing(batch, order, seen))
        assert len(replay) == len(seen)


@pytest.mark.conformance("REC-04")
@pytest.mark.parametrize("hashing", HASHES)
@given(batches=BATCHES, last=st.lists(KEYS, unique=True, max_size=9))
def test_the_last_batch_need_not_be_retained(
    hashing: str, batches: list[list[str]], last: list[str]
) -> None:
    replay, seen = FileReplay(hash_keys=HASHES[hashing]), set[str]()
    for batch in batches:
        replay.surviving(pa.array(batch, pa.string()), order=np.arange(len(batch)))
        seen.update(batch)
    keys = pa.array(last, pa.string())
    found = replay.surviving(keys, order=np.arange(len(last)), remember=False)
    assert {last[row] for row in found.tolist()} == set(last) - seen
    assert len(replay) == len(seen)


def test_batches_are_compared_with_all_earlier_ones() -> None:
    replay, seen = FileReplay(), set[str]()
    for batch in range(64):
        keys = pa.array([f"file-{(batch * 700 + row) % 30_000:05d}" for row in range(1000)])
        found = replay.surviving(keys, order=np.arange(1000))
        new = set(keys.to_pylist()) - seen
        seen |= new
        assert {keys[int(row)].as_py() for row in found} == new
    assert len(replay) == 30_000


@pytest.mark.conformance("REC-04")
def test_keys_are_kept_when_the_bitmap_grows() -> None:
    """Chunks of every size, and enough keys for the bitmap to grow."""
    sizes = [1, 3, 40_000, 2, 70_000, 20_000, 9_000, 9_000, 60_000, 5]
    numbers = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    batches = [pa.array([f"part-{number}" for number in some.tolist()]) for some in numbers]
    replay = FileReplay()
    for batch in batches:
        assert len(replay.surviving(batch, order=np.arange(len(batch)))) == len(batch)
    assert len(replay) == sum(sizes)
    for batch in reversed(batches):
        assert len(replay.surviving(batch, order=np.arange(len(batch)))) == 0
    fresh = pa.array([f"part-{number}" for number in range(sum(sizes) - 3, sum(sizes) + 3)])
    assert sorted(replay.surviving(fresh, order=np.arange(6)).tolist()) == [3, 4, 5]


@given(st.lists(st.text()), st.integers(0, 3), st.integers(0, 3))
def test_a_hash_depends_only_on_the_text(texts: list[str], before: int, behind: int) -> None:
    array = pa.array(["#"] * before + texts + ["tail"] * behind).slice(before, len(texts))
    alone = [int(hash_texts(pa.array([text]))[0]) for text in texts]
    assert hash_texts(array).tolist() == alone
    assert hash_texts(array.cast(pa.large_string())).tolist() == alone
    assert len(set(alone)) == len(set(texts))


def test_hashes_are_the_same_in_every_process() -> None:
    texts = pa.array(["", "a", "part-00000.parquet"])
    assert hash_texts(texts).tolist() == [0, 11880181388052705187, 14728102197348382900]


def test_padding_and_length_change_the_hash() -> None:
    texts = ["", "\0", "\0\0", "a", "a\0", "a" * 8, "a" * 8 + "\0", "a" * 16, "b" + "a" * 15]
    assert len(set(hash_texts(pa.array(texts)).tolist())) == len(texts)


@pytest.mark.conformance("REC-01", "REC-02", "REC-03", "DRAFT-02")
def test_the_newest_action_of_each_key_survives() -> None:
    replay = StateReplay()
    old, new = (Protocol(min_reader_version=1, min_writer_version=n) for n in (2, 3))
    first, second = (Metadata(id=name, schema_string=None) for name in "ab")
    replay.add(txns=[Txn(app_id="x", version=1)], draft_high_water_mark={})
    replay.add(
        protocol=new,
        metadata=second,
        domains=[DomainMetadata(domain="d", configuration="", removed=True)],
    )
    replay.add(
        protocol=old,
        metadata=first,
        txns=[Txn(app_id="x", version=9), Txn(app_id="y", version=2)],
        domains=[DomainMetadata(domain="d", configuration="old")],
        draft_high_water_mark={"highWaterMark": 5},
    )
    assert (replay.protocol, replay.metadata) == (new, second)
    assert {name: txn.version for name, txn in replay.txns.items()} == {"x": 1, "y": 2}
    assert (replay.present_domains(), [*replay.domains]) == ({}, ["d"])
    assert replay.draft_high_water_mark == {"highWaterMark": 5}
