"""The filter of a sidecar: it knows every member, and hardly anything else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.columns import Hashes, MembershipFilter

HASH = st.integers(0, 2**64 - 1)
NEIGHBOURS = st.tuples(HASH, st.integers(-3, 3)).map(lambda pair: (pair[0] + pair[1]) % 2**64)


def hashes(values: list[int]) -> Hashes:
    return np.array(values, np.uint64)


def stored(values: Hashes) -> MembershipFilter:
    return MembershipFilter.from_bytes(MembershipFilter.of(values).to_bytes())


@given(st.lists(HASH | NEIGHBOURS, max_size=200), st.lists(HASH, max_size=20))
def test_every_member_is_found(members: list[int], others: list[int]) -> None:
    found = stored(hashes(members)).may_hold(hashes([*members, *others]))
    assert found[: len(members)].all()


def test_false_positives_are_rare() -> None:
    chance = np.random.default_rng(3)
    members, others = (chance.integers(0, 2**64, n, dtype=np.uint64) for n in (50_000, 1_000_000))
    known = stored(members)
    assert known.may_hold(members).all()
    assert known.may_hold(others).sum() <= 2
    # Neighbours of a member share its bucket, and differ from it in the lower bits.
    assert known.may_hold(members ^ np.uint64(1 << 30)).sum() <= 2


def test_an_empty_filter_finds_nothing() -> None:
    assert not stored(hashes([])).may_hold(hashes([0, 1, 2**64 - 1])).any()
    assert not len(stored(hashes([1])).may_hold(hashes([])))


def test_a_member_takes_about_27_bits() -> None:
    members = np.random.default_rng(1).integers(0, 2**64, 50_000, dtype=np.uint64)
    assert len(MembershipFilter.of(members).to_bytes()) * 8 / 50_000 < 28


@given(st.data())
def test_changed_bytes_are_rejected(data: st.DataObject) -> None:
    text = MembershipFilter.of(hashes(list(range(0, 2**63, 2**56)))).to_bytes()
    at = data.draw(st.integers(0, len(text) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = text[:at] + bytes([text[at] ^ (1 << bit)]) + text[at + 1 :]
    for damaged in (changed, text[:at], text + b"\0"):
        with pytest.raises(CorruptTableError, match="filter"):
            MembershipFilter.from_bytes(damaged)


def test_crowded_buckets_are_not_stored() -> None:
    crowded = MembershipFilter.of(hashes([number << 30 for number in range(1000)]))
    assert not crowded.is_even
    with pytest.raises(CorruptTableError, match="too full"):
        MembershipFilter.from_bytes(crowded.to_bytes())
