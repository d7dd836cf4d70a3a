"""Hashes of texts: the same for one text and for many, and equal to those in existing filters."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol import columns
from delta_maintenance.protocol.columns import hash_texts

HASHES = [0, 9392844443858063846, 11509032365331343835, 8972781894240763008]


@given(st.lists(st.text(max_size=40), min_size=1, max_size=60))
def test_a_text_has_one_hash_in_any_company(texts: list[str]) -> None:
    many = hash_texts(pa.array(texts * (columns._FEW + 1)))[: len(texts)]
    alone = [hash_texts(pa.array([text]))[0] for text in texts]
    assert many.tolist() == alone


def test_hashes_do_not_change() -> None:
    # Filters in the sidecars of existing tables contain them.
    texts = pa.array(["", "part-0", "a=1/part-00000.parquet", "x" * 100_000])
    assert hash_texts(texts).tolist() == HASHES
    long = pa.array(["y" * (columns._BLOCK + 9)] * (columns._FEW + 1))
    assert len(np.unique(np.append(hash_texts(long), hash_texts(long.slice(0, 1))))) == 1
