"""Files are protected under every spelling and every address that could refer to them."""

from __future__ import annotations

import re
import uuid
from urllib.parse import quote, unquote_to_bytes

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError, UnsupportedFeatureError
from delta_maintenance.protocol.actions import DeletionVectorDescriptor, z85_encode
from delta_maintenance.protocol.actions.file_columns import DELETION_VECTOR
from delta_maintenance.protocol.actions.paths import below_root, file_locations
from delta_maintenance.protocol.vacuum import ProtectedPaths, deletion_vector_paths, spellings_of

ROOTS = ("my table", "/srv/my table", "/mnt/real table")
CLEAN = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\\/"),
    min_size=1,
    max_size=12,
).filter(lambda text: text not in (".", ".."))
NAMES = st.lists(CLEAN, min_size=1, max_size=4).map("/".join)


def protected(*paths: str, roots: tuple[str, ...] = ROOTS) -> ProtectedPaths:
    found = ProtectedPaths(roots)
    found.add(pa.table({"path": pa.array(paths, pa.string())}))
    return found


def covers(found: ProtectedPaths, *paths: str) -> list[bool]:
    return found.covers(pa.array(paths, pa.string())).tolist()


def encodings(name: str, root: str) -> list[str]:
    """The spellings that engines have used for the path of one file."""
    return [
        quote(name),
        quote(name, safe="/=:+,;@&$!*'()"),
        "".join(f"%{byte:02x}" for byte in name.encode()),
        f"file:{quote(f'{root}/{name}')}",
        f"file://{quote(f'{root}/{name}')}",
        f"FILE://localhost{quote(f'{root}/{name}')}",
        f"{quote(root)}/{quote(name)}",
        f"file:{quote(root)}/./{quote(name)}",
        f"x/../{quote(name)}",
    ]


@pytest.mark.conformance("VAC-09", "FILE-01")
@given(NAMES, st.sampled_from(ROOTS[1:]))
def test_every_encoding_of_a_name_protects_it(name: str, root: str) -> None:
    for written in encodings(name, root):
        assert covers(protected(written), name) == [True], written


@pytest.mark.conformance("VAC-09")
@given(NAMES)
def test_an_unencoded_name_protects_itself(name: str) -> None:
    assert covers(protected(name), name) == [True]
    if not any(mark in name for mark in "?#"):
        assert covers(protected(f"/srv/my table/{name}"), name) == [True]


@pytest.mark.conformance("VAC-09")
@given(NAMES, st.integers(0, 4), st.integers(0, 4), st.sampled_from(["", "/=", "/=:+ "]))
def test_a_name_is_protected_however_often_it_is_encoded(
    name: str, written: int, stored: int, safe: str
) -> None:
    """deltalake 0.8 and 0.10 encode the names of their files once more than the log says."""

    def encoded(times: int) -> str:
        found = name
        for _ in range(times):
            found = quote(found, safe=safe or "/")
        return found

    assert covers(protected(encoded(written)), encoded(stored)) == [True]


@given(st.lists(NAMES, max_size=20), st.lists(NAMES, max_size=20))
def test_unreferenced_files_are_not_protected(live: list[str], others: list[str]) -> None:
    def alike(name: str) -> set[str]:
        once = unquote_to_bytes(re.sub("%(25)+", "%", name))
        # The path of the log is decoded once, and the file may have either name.
        twice = unquote_to_bytes(re.sub(b"%(25)+", b"%", unquote_to_bytes(name)))
        return {once.lower(), twice.lower()}

    found = covers(protected(*map(quote, live)), *others)
    protecting = set().union(*(alike(quote(name)) for name in live))
    for other, covered in zip(others, found, strict=True):
        if all(name.isascii() for name in (other, *live)):
            assert covered == (unquote_to_bytes(re.sub("%(25)+", "%", other)).lower() in protecting)


@pytest.mark.conformance("VAC-09")
def test_case_and_unicode_forms_protect_each_other() -> None:
    found = protected("A/B.parquet", "u%CC%88.parquet", "%C3%84.parquet")
    assert covers(found, "a/b.parquet", "ü.parquet", "a\u0308.parquet", "b.parquet") == [
        *(True, True, True, False)
    ]


@pytest.mark.conformance("VAC-09", "VAC-10")
def test_an_unknown_address_protects_by_file_name() -> None:
    found = protected("hdfs://cluster/elsewhere/p=1/a%20b.parquet", "/other/my table/c.parquet")
    assert covers(found, "a b.parquet", "q/a b.parquet", "a%20b.parquet", "c.parquet") == [True] * 4
    assert covers(found, "b.parquet", "p=1/x.parquet") == [False, False]


@pytest.mark.conformance("VAC-09", "FILE-01")
@pytest.mark.parametrize("start", ["file:/", "file:///", "FILE://localhost/", "/"])
@pytest.mark.parametrize("end", ["?versionId=1", "#part", "?a#b"])
def test_the_query_of_an_absolute_path_is_no_part_of_the_name(start: str, end: str) -> None:
    """A reader that parses the path as a URI opens the file without it; another one, with it."""
    found = protected(f"{start}srv/my%20table/p=1/a%20b.parquet{end}")
    names = ("p=1/a b.parquet", f"p=1/a b.parquet{end}", f"p=1/a%20b.parquet{end}")
    assert covers(found, *names) == [True] * 3
    assert covers(found, "p=2/a b.parquet") == [False]


@pytest.mark.parametrize("root", ["s3://bucket/t", "s3a://bucket/t", "s3n://bucket/t"])
def test_all_s3_schemes_are_one_store(root: str) -> None:
    found = protected(
        "s3://bucket/t/one", "s3a://bucket/t/two%20x", "s3://bucket/t2/three", roots=(root,)
    )
    assert covers(found, "one", "two x", "four") == [True, True, False]
    assert spellings_of(pa.table({"path": ["s3://bucket/t2/three"]}), roots=(root,)).names_outside[
        0
    ].to_pylist() == [b"three"]


def test_paths_that_are_not_utf_8_are_tolerated() -> None:
    assert covers(protected("%ff%fe", "a%20b"), "a b") == [True]


@pytest.mark.conformance("FILE-01")
def test_paths_below_the_root_are_returned_as_written() -> None:
    paths = pa.array(
        ["/srv/my table/a%20b#c?d", "file:///srv/my%20table/x//y", "/srv/my tableau/z"]
    )
    assert below_root(paths, root="/srv/my table").to_pylist() == ["a%20b#c?d", "x//y", None]
    assert file_locations(paths, root="/srv/my table").to_pylist()[:2] == [b"a b", b"x//y"]


# Deletion vectors


def vectors(*pairs: tuple[str, str | None] | None) -> pa.StructArray:
    rows = [
        None if pair is None else {"storageType": pair[0], "pathOrInlineDv": pair[1]}
        for pair in pairs
    ]
    return pa.array(rows, DELETION_VECTOR)


@pytest.mark.conformance("VAC-04", "DV-03")
@given(st.lists(st.tuples(st.uuids(), st.text("abcXYZ0123", max_size=3)), max_size=20))
def test_deletion_vector_files_follow_from_the_descriptors(
    named: list[tuple[uuid.UUID, str]],
) -> None:
    texts = [f"{prefix}{z85_encode(one.bytes)}" for one, prefix in named]
    expected = {
        DeletionVectorDescriptor(
            storage_type="u", path_or_inline_dv=text, size_in_bytes=1, cardinality=1
        ).relative_path()
        for text in texts
    }
    relative, absolute = deletion_vector_paths(vectors(*(("u", text) for text in texts), None))
    assert set(relative.to_pylist()) == expected and not len(absolute)
    assert len(relative) == len(set(texts))


@pytest.mark.conformance("VAC-04", "VAC-05")
def test_deletion_vector_files_are_distinct() -> None:
    text = f"ab{z85_encode(bytes(range(16)))}"
    relative, absolute = deletion_vector_paths(
        vectors(("u", text), ("i", "wi5b="), ("u", text), ("p", "s3://b/v.bin"), None)
    )
    assert len(relative) == 1 and absolute.to_pylist() == ["s3://b/v.bin"]


@pytest.mark.parametrize(
    ("vector", "error"),
    [
        (("x", "abc"), UnsupportedFeatureError),
        (("u", "tooshort"), CorruptTableError),
        (("u", "~" * 20), CorruptTableError),
        (("u", "#" * 20), CorruptTableError),
        (("u", f"../{z85_encode(bytes(16))}"), CorruptTableError),
        (("u", f"a//{z85_encode(bytes(16))}"), CorruptTableError),
        (("u", None), CorruptTableError),
    ],
)
def test_an_unknown_deletion_vector_file_is_an_error(
    vector: tuple[str, str | None], error: type[Exception]
) -> None:
    with pytest.raises(error):
        deletion_vector_paths(vectors(("i", "x"), vector))
