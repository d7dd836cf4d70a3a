"""Locations of paths in every spelling, and tables whose paths are unsafe."""

from __future__ import annotations

import re
from urllib.parse import quote, quote_from_bytes

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_maintenance.protocol.actions.file_columns import ADD_TYPES, REMOVE_TYPES, empty
from delta_maintenance.protocol.actions.paths import (
    ABSOLUTE,
    PathAudit,
    absolute_paths,
    file_locations,
    has_odd_segment,
    is_encoded,
)
from delta_maintenance.protocol.columns import hash_texts

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


def places(paths: list[str], root: str = "/tables/t") -> list[bytes]:
    found: list[bytes] = file_locations(pa.array(paths, pa.string()), root=root).to_pylist()
    return found


def problem(live: list[str], tombstones: list[str]) -> str | None:
    audit = PathAudit("/tables/t")
    adds, removes = empty(ADD_TYPES), empty(REMOVE_TYPES)
    if live:
        adds = pa.table({"path": pa.array(live, pa.string())})
    if tombstones:
        removes = pa.table({"path": pa.array(tombstones, pa.string())})
    audit.add(adds, removes)
    return audit.problem()


@settings(deadline=None)
@given(st.lists(NAMES, min_size=1))
def test_all_spellings_of_a_path_have_one_location(names: list[str]) -> None:
    file = "part/" + "/".join(names).encode().decode().replace("//", "/-/")
    every_byte = "".join(f"%{byte:02x}" for byte in file.encode())
    for root, prefixes in (
        ("/tables/a%20b", ("/tables/a%2520b/", "file:///tables/a%2520b/", "FILE:/tables/a%2520b/")),
        ("file:/tables/a%20b/", ("/tables/a%20b/", "file://localhost/tables/a%20b/")),
        ("s3a://bucket/x y", ("s3://bucket/x%20y/", "s3n://bucket/%78%20y/")),
    ):
        spellings = [quote(file), every_byte, quote_from_bytes(file.encode(), safe="")]
        spellings += [prefix + path for prefix in prefixes for path in spellings[:2]]
        assert set(places(spellings, root)) == {file.encode()}


def test_different_files_have_different_locations() -> None:
    paths = ["a", "a%2520b", "a%20b", "/a", "/tables/t2/a", "s3://tables/t/a", "gs://tables/t/a"]
    assert len(set(places(paths))) == len(paths)
    assert places(["a%", "%4", "%zz", "b%41"]) == [b"a%", b"%4", b"%zz", b"bA"]


def test_only_the_rows_of_a_slice_are_read() -> None:
    column = pa.array(["%4", "1%41", "%42", "%43"], pa.string())
    assert file_locations(column.slice(1, 2), root="/t").to_pylist() == [b"1A", b"B"]


def test_tables_with_relative_paths_pass() -> None:
    assert problem(["a%20b", "a b"], ["a+b"]) is None


@pytest.mark.conformance("FILE-03")
@pytest.mark.parametrize(
    ("live", "tombstones"),
    [
        (["file:/x/a", "/x/a"], []),
        (["s3://bucket/a", "s3a://bucket/a"], []),
        (["s3://bucket/a%20b"], ["s3://bucket/a%20%62"]),
        (["p=1%202/a", "file:/tables/t/p=1%202/a"], []),
        (["p=1%202/a"], ["file:/tables/t/p=1%202/a"]),
        (["file:/tables/t/p=1%202/a"], ["p=1%202/a"]),
    ],
)
def test_two_spellings_of_a_file_are_found(live: list[str], tombstones: list[str]) -> None:
    found = problem(live, tombstones)
    assert found is not None and "two different paths" in found


def test_absolute_paths_of_different_files_pass() -> None:
    assert problem(["file:/tables/t/a", "b", "file:/other/b"], ["file:/tables/t/c"]) is None


def test_a_path_with_two_live_deletion_vectors_is_named() -> None:
    audit = PathAudit("/tables/t")
    kind = pa.struct([("storageType", pa.string())])
    for paths, vectors in ((["a%20b", "c"], [None, "u"]), (["d", "a%20b"], ["u", "p"])):
        found = [None if each is None else {"storageType": each} for each in vectors]
        columns = {"path": pa.array(paths), "deletionVector": pa.array(found, kind)}
        assert audit.problem() is None
        audit.add(pa.table(columns), empty(REMOVE_TYPES))
    assert audit.problem() == "the path a%20b is live with two deletion vectors"


def test_known_hashes_of_keys_are_used_only_if_they_are_those_of_the_paths() -> None:
    kind = pa.struct([("storageType", pa.string())])
    plain, wrong = pa.table({"path": ["a", "b"]}), np.zeros(2, np.uint64)
    for vector, problem in (
        (None, "one file has two different paths, /tables/t/a and a relative"),
        ({"storageType": "u"}, "the path a is live with two deletion vectors"),
    ):
        columns = {"path": ["a", "/tables/t/a"], "deletionVector": pa.array([vector, None], kind)}
        audit = PathAudit("/tables/t")
        audit.add(plain, empty(REMOVE_TYPES), key_hashes=hash_texts(pa.array(["a", "b"])))
        # The keys of files with a vector are not their paths.
        audit.add(
            pa.table(columns),
            empty(REMOVE_TYPES),
            key_hashes=hash_texts(pa.array(["a", "/tables/t/a"])) if vector is None else wrong,
        )
        assert (audit.problem() or "").startswith(problem)


def test_the_texts_of_paths_are_not_kept() -> None:
    audit, before = PathAudit("/tables/t"), pa.total_allocated_bytes()
    for number in range(20):
        paths = pa.array([f"part-{number}-{row:060d}" for row in range(1000)])
        audit.add(pa.table({"path": paths}), pa.table({"path": paths}))
    del paths
    assert pa.total_allocated_bytes() - before < 100_000
    assert audit.problem() is None


@example(["a/", "b"], 0)
@given(st.lists(st.text("ab/._:%é", max_size=6)), st.integers(0, 3))
def test_the_bytes_of_all_paths_tell_what_a_search_in_each_would_find(
    paths: list[str], start: int
) -> None:
    column = pa.array(paths, pa.string()).slice(start)
    rest = paths[start:]
    assert has_odd_segment(column) == any(re.search(r"(^|/)([._/]|$)", path) for path in rest)
    assert is_encoded(column) == any("%" in path for path in rest)
    absolute = absolute_paths(column)
    expected = [bool(re.match(ABSOLUTE, path)) for path in rest]
    assert (absolute and absolute.to_pylist()) == (expected if any(expected) else None)
