"""The metrics of tables as text, read by the parser of Prometheus' own client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from delta_maintenance.metrics.definitions import MOST_TABLES, OF_TABLES
from delta_maintenance.metrics.tables import TableFacts, families, render
from tests.support.tables.assessed_tables import NOW, health

STATUSES = ("failed", "due", "nothing-due")
SECRET = "hunter2sEcReT"


def facts(name: str = "orders", **changes: Any) -> TableFacts:
    known = TableFacts(
        name=name, status="due", assessed_at=NOW, health=health(), is_failing=False, waiting_plans=0
    )
    return replace(known, **changes)


def parsed(tables: Sequence[TableFacts], *, unlisted: int = 0) -> dict[str, dict[str, float]]:
    """The values by metric and by label; the parser refuses invalid text."""
    text = render(families(tables, statuses=STATUSES, unlisted=unlisted)).decode()
    assert text.endswith("\n# EOF\n")
    return {
        family.name: {",".join(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


def test_every_metric_of_tables_is_in_the_text() -> None:
    assert [*parsed([facts()])] == [metric.in_prometheus for metric in OF_TABLES]


def test_tables_are_counted_by_status_and_their_numbers_added() -> None:
    one, other = health(), health(seed=3)
    found = parsed(
        [
            facts("a", status="failed", health=one, is_failing=True),
            facts("b", health=other, waiting_plans=2, assessed_at=NOW.replace(hour=1)),
            facts("never", status="nothing-due", health=None, assessed_at=None),
        ],
        unlisted=4,
    )
    assert found["delta_maintenance_tables"] == {"failed": 1, "due": 1, "nothing-due": 1}
    assert found["delta_maintenance_unlisted_patterns"] == {"": 4}
    assert found["delta_maintenance_oldest_assessment_timestamp_seconds"] == {
        "": NOW.replace(hour=1).timestamp()
    }
    assert found["delta_maintenance_replay_bytes"] == {"": one.bytes_to_open + other.bytes_to_open}
    assert found["delta_maintenance_table_replay_bytes"] == {
        "a": one.bytes_to_open,
        "b": other.bytes_to_open,
    }
    share = (one.small_files + other.small_files) / (one.num_files + other.num_files)
    assert found["delta_maintenance_small_files_ratio"][""] == pytest.approx(share)
    assert found["delta_maintenance_failing_tables"] == {"": 1}
    assert found["delta_maintenance_table_failing"] == {"a": 1, "b": 0, "never": 0}
    assert found["delta_maintenance_waiting_plans"] == {"": 2}
    assert found["delta_maintenance_table_waiting_plans"] == {"a": 0, "b": 2, "never": 0}


def test_only_a_catalog_managed_table_has_series_of_its_backlog() -> None:
    managed = replace(health(), unpublished_commits=3, unreported_commits=9)
    tables = parsed([facts("managed", health=managed), facts("other")])
    for name, number in (("unpublished_commits", 3), ("unreported_commits", 9)):
        assert tables[f"delta_maintenance_{name}"] == {"": number}
        assert tables[f"delta_maintenance_table_{name}"] == {"managed": number}


def test_without_a_table_the_text_is_valid() -> None:
    found = parsed([])
    assert found["delta_maintenance_small_files_ratio"] == {"": 0}
    assert "delta_maintenance_oldest_assessment_timestamp_seconds" not in found


@pytest.mark.parametrize(
    "name",
    [
        'a"} 1\ndelta_maintenance_table_failing{table="b',
        "back\\slash\\",
        "line\nfeed\r\x85\u2028# EOF",
        "\x00\x1b[31m\u202egnp",
        "surrogate \ud800",
        "{{ $labels }} ${table}",
        "x" * 9_000,
        "",
    ],
)
def test_no_name_of_a_table_can_break_the_text(name: str) -> None:
    found = parsed([facts(name), facts("orders", is_failing=True)])
    failing = found["delta_maintenance_table_failing"]
    assert len(failing) == 2 and failing.pop("orders") == 1
    ((label, value),) = failing.items()
    assert value == 0 and len(label) <= 210 and label.isprintable()


@pytest.mark.parametrize(
    "name",
    [
        f"s3://user:{SECRET}@lake/orders",
        f"abfss://c@a.dfs.core.windows.net/orders?sig={SECRET}",
        f"https://a.blob.core.windows.net/c/orders?sv=1&sig={SECRET}",
        f"orders of s3://user:{SECRET}@lake/orders",
    ],
)
def test_a_secret_in_an_address_is_not_shown(name: str) -> None:
    text = render(families([facts(name)], statuses=STATUSES, unlisted=0)).decode()
    assert SECRET not in text and "table_failing{" in text


def test_tables_with_equal_labels_have_series_of_their_own() -> None:
    names = [f"s3://user:{secret}@lake/orders" for secret in "abc"]
    found = parsed([facts(name, waiting_plans=n) for n, name in enumerate(names)])
    assert sorted(found["delta_maintenance_table_waiting_plans"].values()) == [0, 1, 2]


def test_above_the_limit_there_are_sums_only() -> None:
    tables = [facts(f"t{n}", is_failing=True) for n in range(MOST_TABLES)]
    found = parsed(tables)
    assert len(found["delta_maintenance_table_failing"]) == MOST_TABLES
    assert found["delta_maintenance_tables_without_series"] == {"": 0}
    found = parsed([*tables, facts("one more")])
    assert not any(name.startswith("delta_maintenance_table_") for name in found)
    assert found["delta_maintenance_tables_without_series"] == {"": MOST_TABLES + 1}
    assert found["delta_maintenance_failing_tables"] == {"": MOST_TABLES}
