"""The `_last_checkpoint` hint: lenient reading, canonical writing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.actions import Sidecar
from delta_maintenance.protocol.delta_log.last_checkpoint import (
    LastCheckpointHint,
    V2CheckpointHint,
    canonical_form,
    checksum,
    parse_hint,
    render_hint,
)

SAMPLE: dict[str, Any] = {
    "k0": "'v 0'",
    "checksum": "adsaskfljadfkjadfkj",
    "k1": {"k2": 2, "k3": ["v3", [1, 2], {"k4": "v4", "k5": ["v5", "v6", "v7"]}]},
}
BOTH_ORDERS = pytest.mark.parametrize("sort_whole_pairs", [False, True])
ELEVEN_SCALARS = {"features": [f"f{index}" for index in range(11)]}

MANIFEST = "00000000000000000008.checkpoint.e5ac4dc4-be27-4106-8a55-609707487f83.json"


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def protocol_action(features: int) -> dict[str, Any]:
    return {
        "protocol": {
            "minReaderVersion": 1,
            "minWriterVersion": 7,
            "writerFeatures": [f"feature{index}" for index in range(features)],
        }
    }


def sidecars(count: int) -> tuple[Sidecar, ...]:
    return tuple(
        Sidecar(path=f"{index}.parquet", size_in_bytes=1, modification_time=2)
        for index in range(count)
    )


def rendered(**options: Any) -> dict[str, Any]:
    data = render_hint(
        **{"version": 3, "size": 7, "size_in_bytes": 99, "num_of_add_files": 2} | options
    )
    assert parse_hint(data) is not None
    value = json.loads(data)
    assert isinstance(value, dict)
    return value


@pytest.mark.conformance("LAST-01")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n",
        b"garbage",
        b"null",
        b"7",
        b"[]",
        b"{}",
        b'{"version":1,"size":2',
        b'{"version":1}{"version":1}',
        b"\xff\xfe\x00",
        b'{"version":1,"size":NaN}',
        b'{"version":1,"size":' + b"9" * 10_000 + b"}",
        b'{"version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"version":1,"checksum":"a","x":"\\ud800"}',
    ],
    ids=lambda data: repr(data[:24]),
)
def test_a_hint_that_is_not_a_json_object_is_ignored(data: bytes) -> None:
    assert parse_hint(data) is None


@pytest.mark.conformance("LAST-01")
@given(st.binary(max_size=64))
def test_parsing_a_hint_never_raises(data: bytes) -> None:
    parse_hint(data)


@pytest.mark.conformance("LAST-01")
@pytest.mark.parametrize(
    "fields",
    [
        {"size": 1},
        {"version": None},
        {"version": "1"},
        {"version": 1.0},
        {"version": True},
        {"version": -1},
        {"version": 2**63},
        {"version": 1, "parts": 0},
        {"version": 1, "parts": "2"},
        {"version": 1, "v2Checkpoint": "x"},
        {"version": 1, "v2Checkpoint": {}},
        {"version": 1, "v2Checkpoint": {"path": ""}},
        {"version": 1, "v2Checkpoint": {"path": 3}},
        {"version": 1, "v2Checkpoint": {"path": "../../elsewhere.json"}},
        {"version": 1, "v2Checkpoint": {"path": MANIFEST}, "parts": 2},
    ],
    ids=str,
)
def test_a_hint_with_invalid_required_fields_is_ignored(fields: dict[str, Any]) -> None:
    assert parse_hint(encoded(fields)) is None


@pytest.mark.conformance("LAST-03")
@pytest.mark.parametrize("damage", [None, "x", -1, 1.5, True, [], {}], ids=repr)
@pytest.mark.parametrize("field", ["size", "sizeInBytes", "numOfAddFiles", "tags", "unknown"])
def test_invalid_advisory_fields_are_ignored(field: str, damage: Any) -> None:
    hint = parse_hint(encoded({"version": 5, "size_in_bytes": 41898, field: damage}))

    assert hint == LastCheckpointHint(version=5)


@pytest.mark.conformance("LAST-03")
def test_null_parts_count_as_absent() -> None:
    assert parse_hint(b'{"parts":null,"size":20622,"version":1}\n') == LastCheckpointHint(
        version=1, size=20622
    )


@pytest.mark.conformance("LAST-04")
def test_a_hint_with_a_wrong_checksum_is_ignored() -> None:
    data = render_hint(version=12, size=7, size_in_bytes=99, num_of_add_files=2)
    assert parse_hint(data) is not None

    for old, new in [(b"12", b"13"), (b"99", b"98"), (b'"checksum":"', b'"checksum":"0')]:
        assert parse_hint(data.replace(old, new, 1)) is None


@pytest.mark.conformance("LAST-04")
@pytest.mark.parametrize("found", [7, True, {}, ""], ids=repr)
def test_a_hint_with_an_invalid_checksum_is_ignored(found: Any) -> None:
    assert parse_hint(encoded({"version": 1, "checksum": found})) is None


@pytest.mark.conformance("LAST-05")
@BOTH_ORDERS
def test_the_sample_of_the_protocol_has_its_canonical_form_and_checksum(
    sort_whole_pairs: bool,
) -> None:
    assert canonical_form(SAMPLE, sort_whole_pairs=sort_whole_pairs) == (
        '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,"k1"+"k3"+1+1=2,'
        '"k1"+"k3"+2+"k4"="v4","k1"+"k3"+2+"k5"+0="v5","k1"+"k3"+2+"k5"+1="v6",'
        '"k1"+"k3"+2+"k5"+2="v7"'
    )
    assert checksum(SAMPLE, sort_whole_pairs=sort_whole_pairs) == "6a92d155a59bf2eecbd4b4ec7fd1f875"


@pytest.mark.conformance("LAST-05")
def test_literals_and_empty_containers() -> None:
    value = {"b": {"y": None, "x": "https://delta.io"}, "a": True, "c": [], "d": {}, "e": False}

    assert canonical_form(value, sort_whole_pairs=False) == (
        '"a"=true,"b"+"x"="https%3A%2F%2Fdelta.io","b"+"y"=null,"e"=false'
    )


@pytest.mark.conformance("LAST-05")
def test_numbers_keep_their_digits() -> None:
    digest = hashlib.md5(b'"ratio"=2.50,"version"=1').hexdigest().encode()

    assert parse_hint(b'{"version":1,"ratio":2.50,"checksum":"%s"}' % digest) is not None
    assert parse_hint(b'{"version":1,"ratio":2.5,"checksum":"%s"}' % digest) is None
    assert canonical_form({"ratio": 2.5}, sort_whole_pairs=False) == '"ratio"=2.5'


@pytest.mark.conformance("LAST-05")
def test_reserved_characters_are_percent_encoded() -> None:
    bare = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
    for octet in range(128):
        form = chr(octet) if octet in bare else f"%{octet:02X}"
        assert canonical_form({chr(octet): chr(octet)}, sort_whole_pairs=False) == (
            f'"{form}"="{form}"'
        )
    assert canonical_form({"é": "€😀"}, sort_whole_pairs=False) == (
        '"%C3%A9"="%E2%82%AC%F0%9F%98%80"'
    )


@pytest.mark.conformance("LAST-06")
def test_the_two_orders_differ_for_eleven_scalars() -> None:
    by_path = canonical_form(ELEVEN_SCALARS, sort_whole_pairs=False)
    by_pair = canonical_form(ELEVEN_SCALARS, sort_whole_pairs=True)

    assert by_path.split(",")[1:3] == ['"features"+1="f1"', '"features"+10="f10"']
    assert by_pair.split(",")[1:3] == ['"features"+10="f10"', '"features"+1="f1"']


@pytest.mark.conformance("LAST-06")
@BOTH_ORDERS
def test_checksums_of_both_orders_are_accepted(sort_whole_pairs: bool) -> None:
    value: dict[str, Any] = {"version": 4, **ELEVEN_SCALARS}
    value["checksum"] = checksum(value, sort_whole_pairs=sort_whole_pairs)

    assert parse_hint(encoded(value)) == LastCheckpointHint(version=4)


@pytest.mark.conformance("LAST-07")
@pytest.mark.parametrize(
    "data",
    [
        b'{"version":1,"version":2,"size":1}',
        b'{"version":1,"size":1,"size":1}',
        b'{"version":1,"checkpointSchema":{"type":"struct","type":"struct"}}',
    ],
)
def test_a_hint_with_a_duplicate_key_is_ignored(data: bytes) -> None:
    assert parse_hint(data) is None


@pytest.mark.conformance("LAST-08")
def test_the_hint_of_a_classic_checkpoint() -> None:
    data = render_hint(version=3, size=7, size_in_bytes=99, num_of_add_files=2)
    digest = checksum(json.loads(data), sort_whole_pairs=True)

    assert data == (
        b'{"version":3,"size":7,"sizeInBytes":99,"numOfAddFiles":2,"checksum":"%s"}'
        % digest.encode()
    )
    assert parse_hint(data) == LastCheckpointHint(
        version=3, size=7, size_in_bytes=99, num_of_add_files=2
    )


@pytest.mark.conformance("LAST-08")
def test_fields_are_in_the_order_of_delta_spark() -> None:
    schema = {"type": "struct", "fields": []}

    assert list(rendered(parts=2, checkpoint_schema=schema)) == [
        "version",
        "size",
        "parts",
        "sizeInBytes",
        "numOfAddFiles",
        "checkpointSchema",
        "checksum",
    ]


@pytest.mark.conformance("LAST-08")
@pytest.mark.parametrize(("length", "kept"), [(20_000, True), (20_001, False)])
def test_a_long_schema_is_omitted(length: int, kept: bool) -> None:
    frame = len('{"name":""}')

    hint = rendered(checkpoint_schema={"name": "é" * (length - frame)})

    assert ("checkpointSchema" in hint) is kept


@pytest.mark.conformance("LAST-08")
def test_a_v2_checkpoint_embeds_its_sidecars_and_other_actions() -> None:
    hint = rendered(
        v2_checkpoint=V2CheckpointHint(
            path=MANIFEST,
            size_in_bytes=5460,
            modification_time=1754751134000,
            non_file_actions=(protocol_action(3), {"checkpointMetadata": {"version": 3}}),
            sidecar_files=sidecars(2),
        )
    )

    assert list(hint)[-2:] == ["v2Checkpoint", "checksum"]
    assert hint["v2Checkpoint"] == {
        "path": MANIFEST,
        "sizeInBytes": 5460,
        "modificationTime": 1754751134000,
        "nonFileActions": [protocol_action(3), {"checkpointMetadata": {"version": 3}}],
        "sidecarFiles": [
            {"path": "0.parquet", "sizeInBytes": 1, "modificationTime": 2},
            {"path": "1.parquet", "sizeInBytes": 1, "modificationTime": 2},
        ],
    }
    parsed = parse_hint(json.dumps(hint).encode())
    assert parsed is not None
    assert parsed.v2_path == MANIFEST


@pytest.mark.conformance("LAST-08")
@pytest.mark.parametrize(("count", "kept"), [(0, True), (30, True), (31, False)])
def test_long_lists_of_actions_are_omitted(count: int, kept: bool) -> None:
    v2 = rendered(
        v2_checkpoint=V2CheckpointHint(
            path=MANIFEST,
            size_in_bytes=1,
            modification_time=1,
            non_file_actions=({"txn": {"appId": "a", "version": 1}},) * count,
            sidecar_files=sidecars(count),
        )
    )["v2Checkpoint"]

    assert ("nonFileActions" in v2, "sidecarFiles" in v2) == (kept, kept)


@pytest.mark.conformance("LAST-06")
@pytest.mark.parametrize(("features", "kept"), [(10, True), (11, False)])
def test_actions_are_omitted_before_the_checksum(features: int, kept: bool) -> None:
    hint = rendered(
        v2_checkpoint=V2CheckpointHint(
            path=MANIFEST,
            size_in_bytes=1,
            modification_time=1,
            non_file_actions=(protocol_action(features),),
            sidecar_files=sidecars(30),
        )
    )

    assert ("nonFileActions" in hint["v2Checkpoint"]) is kept
    assert "sidecarFiles" in hint["v2Checkpoint"]
    assert hint["checksum"] == checksum(hint, sort_whole_pairs=True)
    assert hint["checksum"] == checksum(hint, sort_whole_pairs=False)


@pytest.mark.conformance("LAST-06")
def test_no_checksum_if_the_two_orders_disagree() -> None:
    hint = rendered(checkpoint_schema=ELEVEN_SCALARS)

    assert hint["checkpointSchema"] == ELEVEN_SCALARS
    assert "checksum" not in hint


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@pytest.mark.conformance("LAST-04", "LAST-05")
@given(st.dictionaries(st.text(max_size=3), values), st.booleans())
def test_a_hint_is_accepted_with_its_own_checksum(extra: dict[str, Any], whole: bool) -> None:
    value = extra | {"version": 1}
    for key in ("parts", "v2Checkpoint"):
        value.pop(key, None)
    value["checksum"] = checksum(value, sort_whole_pairs=whole)

    assert parse_hint(encoded(value)) is not None


@pytest.mark.conformance("LAST-05")
def test_every_hint_of_the_corpus_is_read_and_its_checksum_verified(corpus: Path) -> None:
    paths = sorted(corpus.glob("*/_delta_log/_last_checkpoint"))
    with_checksum = 0
    for path in paths:
        data = path.read_bytes()
        hint = parse_hint(data)
        if not data:
            assert hint is None
            continue
        assert hint is not None, path
        value = json.loads(data)
        assert hint.version == value["version"]
        assert hint.v2_path == value.get("v2Checkpoint", {}).get("path")
        if "checksum" in value:
            with_checksum += 1
            for order in (False, True):
                assert checksum(value, sort_whole_pairs=order) == value["checksum"], path
    assert (len(paths), with_checksum) == (40, 25)


@pytest.mark.conformance("LAST-08")
def test_hints_of_delta_spark_are_rendered_byte_for_byte(corpus: Path) -> None:
    alike = 0
    for path in sorted(corpus.glob("*/_delta_log/_last_checkpoint")):
        data = path.read_bytes().rstrip()
        # One writer adds a field of its own, which the protocol does not define.
        if b'"checksum"' not in data or b'"checkpointFiles"' in data:
            continue
        value = json.loads(data)
        v2 = value.get("v2Checkpoint")
        assert data == render_hint(
            version=value["version"],
            size=value["size"],
            size_in_bytes=value["sizeInBytes"],
            num_of_add_files=value["numOfAddFiles"],
            parts=value.get("parts"),
            checkpoint_schema=value.get("checkpointSchema"),
            v2_checkpoint=v2
            and V2CheckpointHint(
                path=v2["path"],
                size_in_bytes=v2["sizeInBytes"],
                modification_time=v2["modificationTime"],
                non_file_actions=tuple(v2["nonFileActions"]),
                sidecar_files=tuple(Sidecar.from_json(item) for item in v2["sidecarFiles"]),
            ),
        ), path
        alike += 1
    assert alike == 24
