"""Reading row tracking: its state, and the high-water mark in all formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions import DomainMetadata, Protocol
from delta_maintenance.protocol.row_tracking.row_ids import (
    DOMAIN,
    ENABLED_PROPERTY,
    NO_ROW_ID,
    SUSPENDED_PROPERTY,
    RowTrackingState,
    draft_high_water_mark,
    high_water_mark,
    highest_assigned_row_id,
    render_domain_configuration,
    row_tracking_state,
)

SUPPORTING = Protocol(
    min_reader_version=1, min_writer_version=7, writer_features=("domainMetadata", "rowTracking")
)
UNUSABLE = [
    "",
    "nonsense",
    "[]",
    "7",
    "{}",
    '{"rowIdHighWaterMark":null}',
    '{"rowIdHighWaterMark":1.5}',
    '{"rowIdHighWaterMark":true}',
    '{"rowIdHighWaterMark":"five"}',
    '{"rowIdHighWaterMark":""}',
    '{"rowIdHighWaterMark":"1_0"}',
    '{"rowIdHighWaterMark":" 1"}',
    '{"rowIdHighWaterMark":-2}',
    '{"rowIdHighWaterMark":9223372036854775808}',
    '{"rowIdHighWaterMark":[1]}',
    '{"highwatermark":5}',
    "[" * 100_000,
]


def ids(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


@pytest.mark.conformance("RT-03")
def test_no_domain_means_no_row_id() -> None:
    assert high_water_mark(None) == NO_ROW_ID == -1


@pytest.mark.conformance("RT-03", "RT-05")
@pytest.mark.parametrize(
    "configuration",
    [
        '{"rowIdHighWaterMark":5}',
        '{"highWaterMark":5}',
        '{"rowIdHighWaterMark":"5"}',
        '{"highWaterMark":"5"}',
        '{"rowIdHighWaterMark":5,"domainName":"delta.rowTracking"}',
        '{"rowIdHighWaterMark":null,"highWaterMark":5}',
        ' { "domainName" : {"x": []}, "rowIdHighWaterMark" : 5 } ',
    ],
)
def test_every_spelling_of_the_mark_is_read(configuration: str) -> None:
    assert high_water_mark(configuration) == 5


@pytest.mark.conformance("RT-05")
def test_the_final_key_wins_over_the_former_one() -> None:
    assert high_water_mark('{"highWaterMark":9,"rowIdHighWaterMark":5}') == 5


@pytest.mark.conformance("RT-05", "DRAFT-04")
@pytest.mark.parametrize("key", ["rowIdHighWaterMark", "highWaterMark"])
def test_the_mark_of_a_map_valued_domain_is_read(key: str) -> None:
    domain = DomainMetadata.from_json({"domain": DOMAIN, "configuration": {key: "41"}})

    assert high_water_mark(domain.configuration) == 41


@pytest.mark.conformance("RT-05")
@pytest.mark.parametrize("configuration", UNUSABLE, ids=lambda text: repr(text[:40]))
def test_an_invalid_mark_is_corruption(configuration: str) -> None:
    with pytest.raises(CorruptTableError, match="high-water mark"):
        high_water_mark(configuration)


@pytest.mark.conformance("RT-03")
@given(st.integers(min_value=-1, max_value=2**63 - 1))
def test_a_rendered_mark_is_parsed(mark: int) -> None:
    text = render_domain_configuration(mark)

    assert text == f'{{"rowIdHighWaterMark":{mark}}}'
    assert high_water_mark(text) == mark


@pytest.mark.conformance("DRAFT-02")
@pytest.mark.parametrize(
    ("action", "mark"),
    [
        ({"highWaterMark": 1432, "preservedRowIds": True}, 1432),
        ({"highWaterMark": 1432}, 1432),
        ({"value": 1432}, 1432),
        ({"value": "1432"}, 1432),
        ({"highWaterMark": None, "value": 1432}, 1432),
        ({"highWaterMark": 0}, 0),
        ({"value": None}, None),
        ({"highWaterMark": None, "preservedRowIds": None}, None),
        ({}, None),
    ],
    ids=str,
)
def test_the_draft_action_is_read_in_its_three_shapes(
    action: dict[str, Any], mark: int | None
) -> None:
    assert draft_high_water_mark(action) == mark


@pytest.mark.conformance("DRAFT-02")
def test_an_invalid_draft_mark_is_corruption() -> None:
    with pytest.raises(CorruptTableError, match="'many'"):
        draft_high_water_mark({"highWaterMark": "many"})


@pytest.mark.conformance("RT-04")
def test_the_highest_row_id_includes_all_rows() -> None:
    assert highest_assigned_row_id(ids(0, 200, 100), ids(100, 3, 100)) == 202


@pytest.mark.conformance("RT-04")
@pytest.mark.parametrize(
    ("base", "records", "highest"),
    [
        ((), (), NO_ROW_ID),
        ((None, None), (5, None), NO_ROW_ID),
        ((None, 3), (500, 2), 4),
        ((7,), (None,), 7),
        ((7,), (0,), 6),
        ((0,), (0,), NO_ROW_ID),
        ((2**63 - 1,), (1,), 2**63 - 1),
    ],
)
def test_files_without_ids_or_counts_or_rows(
    base: tuple[int | None, ...], records: tuple[int | None, ...], highest: int
) -> None:
    assert highest_assigned_row_id(ids(*base), ids(*records)) == highest


@pytest.mark.conformance("RT-04")
def test_row_ids_above_64_bits_are_an_error() -> None:
    with pytest.raises(CorruptTableError, match="64 bits"):
        highest_assigned_row_id(ids(2**63 - 1), ids(2))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1, max_size=9
    )
)
def test_chunked_columns_equal_a_loop(files: list[tuple[int | None, int]]) -> None:
    base = pa.chunked_array([ids(file[0]) for file in files])
    records = pa.chunked_array([ids(*(file[1] for file in files))])

    expected = max((b + n - 1 for b, n in files if b is not None), default=NO_ROW_ID)
    assert highest_assigned_row_id(base, records) == expected


@pytest.mark.conformance("RT-01")
@pytest.mark.parametrize(
    ("enabled", "suspended", "state"),
    [
        (None, None, RowTrackingState.SUPPORTED),
        ("false", "false", RowTrackingState.SUPPORTED),
        ("true", None, RowTrackingState.ENABLED),
        ("TRUE", "False", RowTrackingState.ENABLED),
        (None, "true", RowTrackingState.SUSPENDED),
        ("false", "true", RowTrackingState.SUSPENDED),
        ("true", "true", RowTrackingState.CONTRADICTORY),
    ],
)
def test_the_state_follows_from_the_properties(
    enabled: str | None, suspended: str | None, state: RowTrackingState
) -> None:
    properties = {ENABLED_PROPERTY: enabled, SUSPENDED_PROPERTY: suspended}
    configuration = {name: text for name, text in properties.items() if text is not None}

    assert row_tracking_state(SUPPORTING, configuration) is state


@pytest.mark.conformance("RT-01")
@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(min_reader_version=1, min_writer_version=2),
        Protocol(min_reader_version=1, min_writer_version=7, writer_features=()),
        Protocol(min_reader_version=1, min_writer_version=7, writer_features=("rowIds",)),
    ],
)
def test_properties_have_no_effect_without_the_feature(protocol: Protocol) -> None:
    configuration = {ENABLED_PROPERTY: "true", SUSPENDED_PROPERTY: "true"}

    assert row_tracking_state(protocol, configuration) is RowTrackingState.UNSUPPORTED


@pytest.mark.conformance("RT-01")
@pytest.mark.parametrize("name", [ENABLED_PROPERTY, SUSPENDED_PROPERTY])
def test_a_property_that_is_neither_true_nor_false_is_corruption(name: str) -> None:
    with pytest.raises(CorruptTableError, match=name):
        row_tracking_state(SUPPORTING, {name: "yes"})


@pytest.mark.conformance("RT-03", "RT-05")
def test_every_mark_of_the_corpus_covers_the_ids_of_its_table(corpus: Path) -> None:
    marks = {}
    for expected in sorted((corpus / "expected").glob("*.json")):
        for version in json.loads(expected.read_text())["versions"].values():
            configuration = (version.get("domain_metadata") or {}).get(DOMAIN)
            if configuration is None:
                continue
            files = version.get("files") or []
            mark = marks[expected.stem] = high_water_mark(configuration)
            assert mark >= highest_assigned_row_id(
                ids(*(file["baseRowId"] for file in files)),
                ids(*(file["num_records"] for file in files)),
            )
    assert marks == {"deltars-table_with_liquid_clustering": 9}
