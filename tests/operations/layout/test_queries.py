"""The conditions of queries, from SQL and from event logs of Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.layout.pushed_filters import parse_pushed
from delta_maintenance.operations.layout.queries import EVERYTHING, queries_of
from delta_maintenance.protocol.schema.condition import Opaque, parse_condition


def found(tmp_path: Path, text: str, table: str = "/lake/orders") -> dict[str, int]:
    file = tmp_path / "queries"
    file.write_text(text)
    return {each.text: each.runs for each in queries_of((), str(file), table=table)}


def test_lines_are_conditions_or_statements(tmp_path: Path) -> None:
    text = """
    -- the dashboard
    day = '2024-01-01' and note <> 'a -- b'
    SELECT count(*) FROM orders WHERE id = 7 GROUP BY day
    select * from orders o where o.id = 7 order by x
    select * from orders
    id = 7
    """
    assert found(tmp_path, text) == {
        "day = '2024-01-01' and note <> 'a -- b'": 1,
        "id = 7": 2,
        "o.id = 7": 1,
        EVERYTHING: 1,
    }


def test_statements_end_with_a_semicolon(tmp_path: Path) -> None:
    text = """
    SELECT sum(x) FROM orders
    WHERE city = 'a;b'
      AND id IN (SELECT id FROM other WHERE z = 1)
    LIMIT 5; DELETE FROM orders WHERE id = 7;
    SELECT * FROM orders JOIN other USING (id) WHERE z = 1;
    """
    seen = found(tmp_path, text)
    first, second, third = seen
    assert first == "city = 'a;b' AND id IN (SELECT id FROM other WHERE z = 1)"
    assert second == "id = 7" and third.startswith(EVERYTHING)


def test_an_event_log_has_the_scans_of_the_table(tmp_path: Path) -> None:
    def event(location: str, **metadata: str) -> str:
        scan = {"nodeName": "Scan parquet", "metadata": {"Location": location, **metadata}}
        plan = {"nodeName": "Project", "metadata": {}, "children": [{**scan, "children": []}]}
        kind = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
        return json.dumps({"Event": kind, "executionId": 1, "sparkPlanInfo": plan})

    own = "PreparedDeltaFileIndex(1 paths)[file:/lake/orders]"
    pushed = "[IsNotNull(id), GreaterThan(id,5)]"
    lines = [
        '{"Event":"SparkListenerLogStart"}',
        event(own, PushedFilters=pushed, PartitionFilters="[(day#12 = 2024-01-01)]"),
        event("PreparedDeltaFileIndex(1 paths)[file:/lake/other]", PushedFilters=pushed),
        event(own, PushedFilters="[]"),
        event(own, PushedFilters=pushed, PartitionFilters="[(day#9 = 2024-01-01)]"),
        '{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart", broken',
    ]
    assert found(tmp_path, "\n".join(lines), "file:///lake/orders") == {
        "(day = 2024-01-01), IsNotNull(id), GreaterThan(id,5)": 2,
        EVERYTHING: 1,
    }


def test_a_file_without_queries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no query"):
        found(tmp_path, "-- nothing\n")


@pytest.mark.parametrize(
    ("pushed", "sql"),
    [
        ("EqualTo(a,5)", "a = '5'"),
        ("In(a, [1,2])", "a in ('1', '2')"),
        ("Or(LessThan(s.a,5),Not(IsNull(b)))", "s.a < '5' or not b is null"),
        ("StringStartsWith(a,x)", "a like 'x%'"),
        ("EqualNullSafe(a,5)", "a <=> '5'"),
        ("And(IsNotNull(a),GreaterThanOrEqual(a,5))", "not a is null and a >= '5'"),
    ],
)
def test_pushed_filters_are_the_conditions_of_sql(pushed: str, sql: str) -> None:
    _, condition = parse_pushed({"PushedFilters": f"[{pushed}]"})
    assert condition == parse_condition(sql, lenient=True)


@pytest.mark.parametrize("pushed", ["EqualTo(a,x,y)", "StringContains(a,x)", "In(a, [1,2", "..."])
def test_other_filters_skip_nothing(pushed: str) -> None:
    _, condition = parse_pushed({"PushedFilters": f"[{pushed}]"})
    assert isinstance(condition, Opaque)
