"""XCom values stay small and flat, whatever the size of the table."""

from __future__ import annotations

import json
import os
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance_airflow.tasks import LIMIT, flat
from tests.support.orchestrators.airflow_versions import AirflowFailException
from tests.support.orchestrators.operator_cases import BY_VERB, Case
from tests.support.tables.actions import add
from tests.support.tables.overdue_tables import overdue_table

MANY = 10_000

names = st.text(string.ascii_lowercase, min_size=1, max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=3000)
values = st.recursive(
    scalars,
    lambda within: (
        st.lists(within, max_size=40)
        | st.dictionaries(names, within, max_size=5)
        | st.tuples(within, st.integers(2, 20)).map(lambda pair: [pair[0]] * pair[1])
    ),
    max_leaves=30,
)


@given(st.dictionaries(names, values, max_size=40))
def test_any_record_becomes_a_small_flat_object(document: dict[str, Any]) -> None:
    facts = flat(document)
    assert len(json.dumps(facts)) <= LIMIT
    for value in facts.values():
        items = value if isinstance(value, list) else [value]
        assert all(item is None or isinstance(item, bool | int | str) for item in items)


def test_small_values_are_complete() -> None:
    document = {
        "version": 3,
        "path": None,
        "notes": ["a", "b"],
        "protocol": {"reader": 1, "features": ["x"]},
        "windows": [{"first": n, "path": None, "deep": [1]} for n in range(12)],
    }
    assert flat(document) == {
        "version": 3,
        "path": None,
        "notes": ["a", "b"],
        "protocol_reader": 1,
        "protocol_features": ["x"],
        "windows": [f"first: {n}" for n in range(10)],
        "num_windows": 12,
    }


def test_the_longest_value_is_the_first_to_be_cut() -> None:
    facts = flat(
        {"path": "p" * 100, "reason": "r" * 1000, "notes": ["n" * 3000, "short"]}, limit=900
    )
    assert facts["path"] == "p" * 100
    assert facts["reason"].endswith("r…") and facts["notes"][1] == "short"
    assert len(json.dumps(facts)) <= 900


def write_old(files: Iterable[Path]) -> None:
    """Without the durable writes of a store, which would take a minute."""
    for file in files:
        file.write_bytes(b"\n")
        os.utime(file, (1_700_000_000, 1_700_000_000))


def task(case: Case, path: Path, **arguments: Any) -> Any:
    return case.operator(task_id="t", table_uri=str(path), **arguments)


def test_ten_thousand_dead_files_are_in_the_report_alone(
    tmp_path: Path, task_context: dict[str, Any]
) -> None:
    overdue_table(tmp_path / "t")
    write_old(tmp_path / "t" / f"dead-{n:05}-{'x' * 40}.parquet" for n in range(MANY))
    arguments = {"report_uri": f"{tmp_path}/reports/", "options": {"allow_large_delete": "true"}}
    for plan_only, left in ((True, MANY + 14), (False, 13)):
        made = task(BY_VERB["vacuum"], tmp_path / "t", plan_only=plan_only, **arguments)
        outcome = made.execute(task_context)
        assert len(json.dumps(outcome)) < LIMIT
        assert outcome["files" if plan_only else "deleted"] == MANY + 1
        rows = pq.read_table(outcome["report_uri"])
        assert rows.num_rows == MANY + 1 and "0.parquet" in rows["path"].to_pylist()
        assert len(list((tmp_path / "t").glob("*.parquet"))) == left
    assert len(list((tmp_path / "reports").iterdir())) == 2, "each try has a report of its own"


def test_ten_thousand_findings_are_in_the_report_alone(
    tmp_path: Path, task_context: dict[str, Any]
) -> None:
    table = overdue_table(tmp_path / "t")
    table.log(*(add(f"gone-{n:05}-{'x' * 40}.parquet") for n in range(MANY)))
    report = tmp_path / "findings.parquet"
    made = task(BY_VERB["fsck"], tmp_path / "t", report_uri=str(report))
    with pytest.raises(AirflowFailException, match=f"{MANY} missing"):
        made.execute(task_context)
    outcome = task_context["ti"].xcom_push.call_args.kwargs["value"]
    assert len(json.dumps(outcome)) < LIMIT
    assert (outcome["num_corrupt"], outcome["report_uri"]) == (MANY, str(report))
    assert pq.read_table(report).num_rows == MANY


def test_ten_thousand_files_of_a_log_are_in_the_report_alone(
    tmp_path: Path, task_context: dict[str, Any]
) -> None:
    table = overdue_table(tmp_path / "t")
    last = table.version + MANY
    log = tmp_path / "t/_delta_log"
    write_old(log / f"{version:020}.json" for version in range(table.version + 1, last + 1))
    table.checkpoint(last)
    outcome = task(
        BY_VERB["clean-log"], tmp_path / "t", plan_only=True, report_uri=f"{tmp_path}/reports/"
    ).execute(task_context)
    assert len(json.dumps(outcome)) < LIMIT
    assert outcome["groups"][0].startswith(f"kind: commits, count: {last}")
    rows = pq.read_table(outcome["report_uri"])
    assert rows.column_names == ["kind", "name"]
    assert set(rows["kind"].to_pylist()) == {"commits", "checkpoints"}
    assert rows["name"][0].as_py() == f"{0:020}.json"
    assert rows.num_rows == last + 1


def test_a_report_is_never_overwritten_and_never_inside_the_table(
    tmp_path: Path, task_context: dict[str, Any]
) -> None:
    overdue_table(tmp_path / "t")
    report = tmp_path / "report.parquet"
    for verb in ("vacuum", "fsck", "clean-log"):
        for address, message in ((report, "already"), (tmp_path / "t/report.parquet", "inside")):
            report.write_bytes(b"somebody's")
            with pytest.raises(AirflowFailException, match=message):
                task(BY_VERB[verb], tmp_path / "t", report_uri=str(address)).execute(task_context)
            assert report.read_bytes() == b"somebody's"
    assert (tmp_path / "t/0.parquet").exists(), "nothing goes without its report"
