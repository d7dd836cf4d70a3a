"""Hidden names at every level, nested tables, and the kind of file that a name has."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.vacuum import (
    Reason,
    VisibilityRules,
    checksums_of,
    in_a_log,
    reasons,
)

COLUMNS = ("_x", "b c", "a.b", ".dot", "p")
SEGMENTS = st.sampled_from(
    ["a", "_a", ".a", "_x=1", "_x", "_xy=1", "a.b=2", "aXb=2", ".dot=", "p=_1", "_change_data"]
    + ["_change_data_2", "metadata", "_delta_log", "b c=.", "x_", "x.", "_x=_x=1"]
)
PATHS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)


def hidden_by_hand(path: str, *, iceberg: bool) -> bool:
    """The rule, applied segment by segment."""
    *folders, name = path.split("/")
    for depth, folder in enumerate(folders):
        if iceberg and folder == "metadata":
            return True
        if any(folder.startswith(f"{column}=") for column in COLUMNS):
            continue
        if depth == 0 and folder == "_change_data":
            continue
        if folder.startswith(("_", ".")):
            return True
    return name.startswith(("_", "."))


@pytest.mark.conformance("VAC-11")
@given(st.lists(PATHS, max_size=30), st.booleans())
def test_hidden_names_follow_the_rule(paths: list[str], iceberg: bool) -> None:
    rules = VisibilityRules(partition_columns=COLUMNS, iceberg=iceberg)
    found = rules.hidden(pa.array(paths, pa.string())).tolist()
    assert found == [hidden_by_hand(path, iceberg=iceberg) for path in paths]
    for path in paths:
        assert rules.is_hidden_directory(path) == hidden_by_hand(f"{path}/x", iceberg=iceberg)


@pytest.mark.conformance("VAC-10")
@given(PATHS.filter(lambda path: "_delta_log" not in path), PATHS)
def test_a_log_in_a_visible_place_is_found(folder: str, below: str) -> None:
    rules = VisibilityRules(partition_columns=COLUMNS, iceberg=False)
    visible = not hidden_by_hand(f"{folder}/x", iceberg=False)
    paths = pa.array(["a/b", f"{folder}/_delta_log/{below}", f"{folder}/_delta_log"])
    assert (rules.nested_log(paths) is not None) == visible
    own = pa.array([f"_delta_log/{below}", "_delta_log", "a/_delta_logs/x", "a/x_delta_log"])
    assert rules.nested_log(own) is None


@pytest.mark.conformance("VAC-12")
def test_a_log_is_recognised_in_any_case() -> None:
    paths = ["_delta_log", "_delta_log/0", "a/_delta_log/0", "_DELTA_LOG/0", "_delta_log2/0", "a"]
    assert in_a_log(pa.array(paths)).tolist() == [True, True, True, True, False, False]


@pytest.mark.conformance("VAC-14")
@pytest.mark.parametrize(
    ("path", "tracked", "reason"),
    [
        ("a.parquet", False, Reason.UNREFERENCED),
        ("p=1/a.snappy.PARQUET", False, Reason.UNREFERENCED),
        ("a.parquet", True, Reason.EXPIRED),
        ("no-suffix", True, Reason.EXPIRED),
        ("no-suffix", False, Reason.FOREIGN),
        ("a.parquet.tmp", False, Reason.FOREIGN),
        ("deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin", False, Reason.DELETION_VECTOR),
        (
            "x/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin",
            True,
            Reason.DELETION_VECTOR,
        ),
        ("deletion_vector_x.bin", False, Reason.FOREIGN),
        ("a.bin", False, Reason.FOREIGN),
        ("_change_data/cdc-1.parquet", True, Reason.CHANGE_DATA),
        ("sub/_change_data/x.parquet", False, Reason.UNREFERENCED),
        ("metadata/v1.metadata.json", False, Reason.FOREIGN),
    ],
)
def test_the_reason_follows_from_the_name_or_the_tombstone(
    path: str, tracked: bool, reason: Reason
) -> None:
    found = reasons(pa.array([path]), expired=pa.array([tracked]))
    assert found.tolist() == [reason]


def test_checksums_belong_to_their_files() -> None:
    paths = pa.array([".a.crc", "p/.a.crc", "p/.b.crc", "p/a.crc", ".a.parquet.crc", "..crc"])
    owners = pa.array(["a", "p/a", "a.parquet", "p/x"])
    assert checksums_of(paths, owners).tolist() == [True, True, False, False, True, False]
