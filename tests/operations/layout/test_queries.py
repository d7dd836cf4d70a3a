"""The conditions of queries, from SQL and from event logs of Spark."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.layout import queries
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


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


EVENTS = [
    json.dumps(
        {
            "Event": "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart",
            "sparkPlanInfo": {
                "metadata": {
                    "Location": "[file:/lake/orders]",
                    "PushedFilters": f"[EqualTo(a,{n})]",
                }
            },
        }
    ).encode()
    for n in range(3)
]


@pytest.mark.parametrize("compressed", [zstd, gzip.compress, bytes])
def test_a_rolled_event_log_is_a_folder(
    compressed: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "eventlog_v2_app-1"
    folder.mkdir()
    for number, event in enumerate(EVENTS, 9):
        (folder / f"events_{number}_app-1").write_bytes(compressed(event + b"\n"))
    (folder / "events_12_app-1").write_bytes(compressed(EVENTS[0] + b"\n")[:-4])
    (folder / "appstatus_app-1.inprogress").touch()
    (folder / ".events_1_app-1.crc").write_bytes(b"crc")
    seen = queries_of((), str(folder), table="file:///lake/orders")
    # The last file is still being written.
    assert [query.text for query in seen] == [f"EqualTo(a,{n})" for n in range(3)]


def test_an_event_that_is_too_large_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MOST_BYTES", 400)
    large = EVENTS[1][:-1] + b', "rest": "' + b"x" * 1000 + b'"}'
    seen = found(
        tmp_path, b"\n".join([EVENTS[0], large, EVENTS[2]]).decode(), "file:///lake/orders"
    )
    assert list(seen) == ["EqualTo(a,0)", "EqualTo(a,2)"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"LZ4Block\x26", "compressed by LZ4; .*zstd"),
        (b"\x82SNAPPY\x00\x00", "compressed by Snappy"),
        ("a = 1".encode("utf-16"), "no text in UTF-8"),
        (b"a = 1\n" * 100, "larger than 0 MiB, and no event log"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MOST_BYTES", 400)
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(InvalidRequestError, match=message):
        queries_of((), str(tmp_path / "log"), table="t")


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


@pytest.mark.parametrize(
    ("filtered", "sql"),
    [
        ("(day#12 = 2026-01-02)", "day = '2026-01-02'"),
        ("isnotnull(day#12)", "not day is null"),
        ("isnull(s#3.`a`)", "s.a is null"),
        ("(city#4 = New York, NY)", "city = 'New York, NY'"),
        ("((n#1L >= 5) AND (n#1L < 9))", "n >= '5' and n < '9'"),
        ("((n#1 = 5) OR isnull(n#1))", "n = '5' or n is null"),
        ("NOT (n#1 = 5)", "not n = '5'"),
        ("day#12 IN (2026-01-02,2026-01-03)", "day in ('2026-01-02', '2026-01-03')"),
        ("StartsWith(city#4, New)", "city like 'New%'"),
    ],
)
def test_partition_filters_are_the_conditions_of_sql(filtered: str, sql: str) -> None:
    _, condition = parse_pushed({"PartitionFilters": f"[{filtered}]"})
    assert condition == parse_condition(sql, lenient=True)


@pytest.mark.parametrize(
    "filtered",
    ["(year(day#12) = 2026)", "(a#1 = b#2)", "city#4 LIKE %x%", "(cast(n#1 as string) = 5)", "("],
)
def test_other_partition_filters_skip_nothing(filtered: str) -> None:
    text, condition = parse_pushed({"PartitionFilters": f"[{filtered}]"})
    assert isinstance(condition, Opaque)
    assert "#" not in text


def test_filters_inside_many_others_skip_nothing() -> None:
    """The parser is recursive."""
    deep = "Not(" * 5000 + "IsNull(a)" + ")" * 5000
    _, condition = parse_pushed({"PushedFilters": f"[{deep}]"})
    assert condition == Opaque(deep)


@pytest.mark.parametrize("pushed", ["EqualTo(a,x,y)", "StringContains(a,x)", "In(a, [1,2", "..."])
def test_other_filters_skip_nothing(pushed: str) -> None:
    _, condition = parse_pushed({"PushedFilters": f"[{pushed}]"})
    assert isinstance(condition, Opaque)
