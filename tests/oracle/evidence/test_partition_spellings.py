"""Spellings of partition values that some readers refuse: named by fsck, mended by a rewrite."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import deltalake
import pyarrow as pa
import pytest

from delta_maintenance.operations import checkpoint, optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.protocol.schema import PrimitiveType
from delta_maintenance.protocol.schema.partition_values import parse_partition_values
from delta_maintenance.storage import open_store
from delta_maintenance.table.read import Table
from tests.support.operations.fsck_runs import run
from tests.support.oracle.other_readers import DuckDb, duck
from tests.support.oracle.recordings import RecordedSpark
from tests.support.rewrites.data_files import DataTable, field
from tests.support.rewrites.rewritten_tables import NOW

pytestmark = pytest.mark.recorded

__all__ = ["duck"]

SPELLINGS = {
    "decimal(10,2)": ("1.50", ["1.5", "1.50", "01.5", "1.5E0", "15E-1", "+1.500"]),
    "long": ("7", ["7", "07", "+7"]),
    "boolean": ("true", ["true", "True", "TRUE"]),
    "date": ("2026-01-02", ["2026-01-02", "2026-1-2"]),
    "timestamp": (
        "2026-01-02T03:04:05.000000Z",
        [
            "2026-01-02T03:04:05Z",
            "2026-01-02 03:04:05Z",
            "2026-01-02 04:04:05+01",
            "2026-01-02 03:04:05 UTC",
            "2026-01-02 04:04:05 Europe/Berlin",
        ],
    ),
    "timestamp_ntz": (
        "2026-01-02 03:04:05.12",
        ["2026-01-02T03:04:05.12", "2026-01-02 03:04:05.120000", "2026-1-2 3:04:05.12"],
    ),
}
REFUSED = ("decimal(10,2)", "timestamp", "timestamp_ntz")


def table(kind: str, texts: list[str | None], root: Path) -> DataTable:
    made = DataTable(
        field("id", "long"),
        field("p", kind),
        store=open_store(root),
        features=["timestampNtz"] if kind == "timestamp_ntz" else [],
        partitioned_by=["p"],
    )
    for number, text in enumerate(texts):
        made.append(pa.table({"id": [number]}), partitionValues={"p": text})
    return made


@pytest.mark.parametrize("kind", SPELLINGS)
def test_equal_values_are_merged_under_the_canonical_spelling(
    kind: str, tmp_path: Path, duck: DuckDb, recorded_spark: RecordedSpark
) -> None:
    canonical, texts = SPELLINGS[kind]
    made = table(kind, [*texts, None, None], tmp_path)
    by_spark = recorded_spark.rows(f"SELECT id, p FROM delta.`{tmp_path}`")
    found = run(Table(made.store)).findings
    named = [each.problem for each in found if each.kind == "partition-value-spelling"]
    assert bool(named) == (kind in REFUSED)
    if named:
        assert all("DuckDB" in problem and kind in problem for problem in named)
        with pytest.raises(Exception, match=r"[Pp]arse|kernel"):
            duck.rows(tmp_path)

    context = RunContext.at(NOW)
    plan = optimize.plan(Table(made.store).snapshot(), OptimizeOptions(workers=1), context=context)
    optimize.apply(Table(made.store), plan, context=context)

    files = Table(made.store).snapshot().live_files()
    values = sorted((dict(v)["p"] for v in files["partition_values"].to_pylist()), key=str)
    assert values == sorted([canonical, None], key=str)
    # The kernel also parses the values of removed files, as long as it reads their commits.
    written = checkpoint.plan(Table(made.store).snapshot(), context=context)
    checkpoint.apply(Table(made.store), written, context=context)
    assert recorded_spark.rows(f"SELECT id, p FROM delta.`{tmp_path}`") == by_spark
    rows = duck.rows(tmp_path)
    assert sorted(rows["id"].to_pylist()) == list(range(len(texts) + 2))
    assert len(set(rows["p"].to_pylist())) == 2
    other = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tmp_path))
    [(count, distinct)] = [
        tuple(row.values())
        for row in pa.table(
            other.execute("SELECT count(*) AS c, count(DISTINCT p) AS d FROM t").read_all()
        ).to_pylist()
    ]
    assert (count, distinct) == (len(texts) + 2, 1)
    kinds = {each.kind for each in run(Table(made.store)).findings}
    assert "partition-value-spelling" not in kinds


def test_dates_and_times_are_read_as_delta_spark_reads_them(
    tmp_path: Path, recorded_spark: RecordedSpark
) -> None:
    texts = {
        "timestamp": [
            *("2020-01-01", "2020-1", "2020", " 2020-01-01 ", "2020-01-01 08", "2020-1-1T8:9"),
            *("2020-01-01 08:09:10.", "2020-01-01 8:9:1.5", "2020-01-01 08:09:10.12345678901"),
            *(f"2020-07-01 08:09:10{zone}" for zone in ("Z", " Z", " UTC", "GMT", "UT+1", "UTC-2")),
            *(f"2020-07-01 08:09:10{zone}" for zone in ("+5:00", "+05:30:15", "-0930", "+01")),
            *(f"2020-07-01 08:09:10.1{zone}" for zone in ("Europe/Berlin", " EST", " US/Pacific")),
            *("2021-03-28 02:30:00 Europe/Berlin", "2021-10-31 02:30:00 Europe/Berlin"),
            *("2020-01-01T", "2020-01-01 08:09Z", "2020-01-01 24:00:00", "2020-13-01", "yesterday"),
            *(f"2020-07-01 08:09:10{zone}" for zone in ("+18:01", "+123", " Europe", " ../UTC")),
        ],
        "date": ["2020-1-2", "2020-02", "2020", " 2020-01-02", "2020-01-02 08:00", "2020-01-02Tx"]
        + ["2020-01-02Z", "20-01-02", "2020-02-30", "2020-"],
        "timestamp_ntz": ["2020-01-02", "2020-01", "2020-01-02T3:4", "2020-01-02 3:4:5.6", "x"],
    }
    for kind, spelt in texts.items():
        root = tmp_path / kind
        table(kind, [*spelt], root)
        query = f"SELECT id, CAST(p AS STRING) AS p, current_timezone() AS zone FROM delta.`{root}`"
        rows = [json.loads(row) for row in recorded_spark.rows(query)]
        read = {spelt[row["id"]]: row.get("p") for row in rows}
        zone = rows[0]["zone"]
        parsed = parse_partition_values(
            pa.array(spelt), PrimitiveType(name=kind), zone=ZoneInfo(zone), strict=False
        ).values
        ours = [None if value is None else spark_text(value, zone) for value in parsed.to_pylist()]
        assert dict(zip(spelt, ours, strict=True)) == read


def spark_text(value: date, zone: str) -> str:
    """A date or time as Spark shows it."""
    if isinstance(value, datetime):
        value = value.astimezone(ZoneInfo(zone)) if value.tzinfo is not None else value
        text = value.replace(tzinfo=None).isoformat(" ")
        return text.rstrip("0") if value.microsecond else text
    return value.isoformat()


def test_a_file_that_is_not_rewritten_keeps_its_spelling(tmp_path: Path) -> None:
    made = table("decimal(10,2)", ["1.5"], tmp_path)
    plan = optimize.plan(Table(made.store).snapshot(), context=RunContext.at(NOW))
    assert plan.is_noop
