"""Rendered commits compared with a straightforward rendering of the same actions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.actions import DomainMetadata, Metadata, Protocol, Txn
from delta_maintenance.protocol.commit.build import render_commit
from delta_maintenance.protocol.commit.staged import StagedActions, staged_adds, staged_removes
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import parse_other_lines, split
from tests.support.tables import actions as log

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PATH = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
LONG = st.integers(-(2**63), 2**63 - 1)
VECTOR = st.fixed_dictionaries(
    {"storageType": st.sampled_from("up"), "pathOrInlineDv": TEXT, "sizeInBytes": st.just(4)},
    optional={"offset": st.integers(0, 9), "cardinality": st.integers(0, 9)},
)
COMMON = {
    "stats": TEXT,
    "tags": st.dictionaries(st.sampled_from(["k", '"', "é\n"]), TEXT),
    "deletionVector": VECTOR,
    "baseRowId": LONG,
    "defaultRowCommitVersion": LONG,
}
ADD = st.fixed_dictionaries(
    {
        "path": PATH,
        "partitionValues": st.fixed_dictionaries({"part": st.none() | TEXT}),
        "size": LONG,
        "modificationTime": LONG,
        "dataChange": st.booleans(),
    },
    optional=COMMON | {"clusteringProvider": TEXT, "futureField": LONG},
)
REMOVE = st.fixed_dictionaries(
    {"path": PATH, "dataChange": st.booleans()},
    optional=COMMON
    | {"deletionTimestamp": LONG, "size": LONG, "extendedFileMetadata": st.just(True)},
)


def lines(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data[:-1].split(b"\n")]


@pytest.mark.conformance("LOG-03", "LOG-06", "FILE-02", "FILE-06", "FILE-12")
@given(st.lists(ADD, max_size=5), st.lists(REMOVE, max_size=5))
def test_file_actions_round_trip(adds: list[dict[str, Any]], removes: list[dict[str, Any]]) -> None:
    staged = StagedActions(
        adds=staged_adds(adds, partition_columns=["part"]), removes=staged_removes(removes)
    )
    data = render_commit({"operation": "TEST"}, staged)
    expected = [{"remove": value} for value in removes] + [{"add": value} for value in adds]
    assert lines(data) == [{"commitInfo": {"operation": "TEST"}}, *expected]


@pytest.mark.conformance("LOG-03", "ICT-02")
def test_one_action_per_line_and_commit_info_first() -> None:
    staged = StagedActions(
        protocol=Protocol(min_reader_version=1, min_writer_version=2),
        metadata=Metadata(id="m", schema_string="{}"),
        txns=(Txn(app_id="a", version=1),),
        domains=(DomainMetadata(domain="d", configuration="{}"),),
        adds=staged_adds([log.add("f")["add"]]),
    )
    found = lines(render_commit({"inCommitTimestamp": 1, "operation": "TEST"}, staged))
    names = [name for line in found for name in line]
    assert names == ["commitInfo", "protocol", "metaData", "txn", "domainMetadata", "add"]
    assert next(iter(found[0]["commitInfo"])) == "inCommitTimestamp"


def test_thousands_of_files_are_rendered_in_order() -> None:
    actions = [
        log.add(f"f{n}", size=n, stats=json.dumps({"numRecords": n}))["add"] for n in range(40_000)
    ]
    staged = staged_adds(actions)
    text = split("commit", render_commit({}, StagedActions(adds=staged)))
    _, beside = parse_other_lines(text)
    keys = MapKeys(partition_columns=frozenset())
    parsed = parse_file_actions([FileLines.of(text, beside)], keys=keys)
    for name in ("path", "size", "stats"):
        assert parsed.adds[name].equals(staged[name])


def test_sliced_columns_are_rendered_correctly() -> None:
    actions = [
        log.add(
            f"f{n}", tags={"n": str(n)} if n % 2 else log.OMIT, partitionValues={"part": str(n)}
        )["add"]
        for n in range(9)
    ]
    staged = staged_adds(actions, partition_columns=["part"]).slice(3, 4)
    found = lines(render_commit({}, StagedActions(adds=staged)))[1:]
    assert found == [{"add": action} for action in actions[3:7]]
