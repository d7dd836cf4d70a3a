"""The rows that violate a constraint are those of Delta Spark, where this process evaluates it.

A table of Delta Spark has values at the edges of each type, and nulls. Its columns are mapped by
name, some are partition columns or were added later, and some rows are deleted by deletion vectors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from delta_maintenance import open_table
from delta_maintenance.operations.table_change.row_check import LocalConstraintCheck
from delta_maintenance.protocol.schema import parse_schema
from delta_maintenance.protocol.schema.spark_agreement import obstacle_without_spark
from tests.support.oracle.recordings import RecordedSpark
from tests.support.suite.play import PLAY, examples

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]

WIDE = "9" * 28 + "." + "9" * 10
INTEGERS = ("0", "1", "-1", "007", "127", "-128", "300", "2147483647", "-9223372036854775808")
DECIMALS = ("0", "1", "-.5", "5.", "999.99", "-999.99", "1.50", "1.500", "1.555", "1000", WIDE)
TEXTS = ("''", "'a'", "'A'", "'ä'", "'z'", "' a'", "'\U0001f600'", "'it''s'", r"'\n'", "'1'", "1")
DAYS = ("'2024-02-29'", "DATE '2024-02-29'", "'0001-01-01'", "'9999-12-31'", "'2024-2-29'", "'x'")
COLUMNS: Mapping[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "t": ("TINYINT", ("-128", "0", "127"), INTEGERS),
    "h": ("SMALLINT", ("-32768", "1", "32767"), INTEGERS),
    "i": ("INT", ("-2147483648", "0", "7", "2147483647"), INTEGERS),
    "l": ("BIGINT", ("-9223372036854775808", "1", "9223372036854775807"), INTEGERS),
    "m": ("DECIMAL(5,2)", ("-999.99", "0", "1.5", "999.99"), DECIMALS),
    "w": ("DECIMAL(38,10)", (f"-{WIDE}", "0", "1.5", WIDE), DECIMALS),
    "n": ("DECIMAL(38,0)", ("0", "1", "9" * 38, "-" + "9" * 38), (*DECIMALS, "9" * 38)),
    "f": ("FLOAT", ("-0.0", "1", "NaN", "-Infinity", "9999999"), (*INTEGERS, "9999999", "1.5")),
    "e": ("DOUBLE", ("-0.0", "0.5", "NaN", "Infinity"), (*INTEGERS, "1.5", "1e3")),
    "s": ("STRING", ("", "a", "A", "ä", "z", " a", "\U0001f600"), TEXTS),
    "b": ("BOOLEAN", ("true", "false"), ("true", "FALSE", "1", "'true'")),
    "d": ("DATE", ("0001-01-01", "1582-10-04", "2024-02-29", "9999-12-31"), DAYS),
    "p": ("STRING", ("a", "ä"), TEXTS),
    "q": ("DATE", ("1582-10-15", "2024-02-29"), DAYS),
    "late": ("INT", ("3",), INTEGERS),
}
"""The type of each column, its values, and literals, of which some are left to Spark."""
ROWS, CONDITIONS = 40, 60


FORMS = (
    *("{n} {s} {a}",) * 4,
    *("{n}{s}{a}", "{n} BETWEEN {a} AND {b}", "NOT {n} NOT BETWEEN {a} AND {b}", "{n} IN ({a})"),
    *("{n} NOT IN ({a}, {b})", "NOT {n} IN ({a},{b})", "{n} IS NULL", "{n} IS NOT NULL"),
)
SIGNS = ("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>")
JOINTS = ("{} AND {}", "{} OR {}", "NOT ({})", "({}) AND ({})")


def draw_condition(random: Random, depth: int = 2) -> str:
    """Returns an expression of a constraint.

    Examples of Hypothesis depend on the modules that are loaded, and would not stay recorded.
    """
    if depth and random.random() < 0.5:
        joint = random.choice(JOINTS)
        return joint.format(*(draw_condition(random, depth - 1) for _ in range(joint.count("{}"))))
    name = random.choice([*COLUMNS])
    low, high = random.choices(COLUMNS[name][2], k=2)
    name, sign = random.choice((name, name.upper(), f"`{name}`")), random.choice(SIGNS)
    return random.choice(FORMS).format(n=name, s=sign, a=low, b=high)


@pytest.fixture(scope="module")
def written(recorded_module: RecordedSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("constraint-rows") / "written"
    names = [name for name in COLUMNS if name != "late"]
    columns = ", ".join(f"{'x' if name == 'i' else name} {COLUMNS[name][0]}" for name in names)
    recorded_module.sql(
        f"CREATE TABLE delta.`{path}` ({columns}) USING delta PARTITIONED BY (p, q) TBLPROPERTIES "
        "('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true')"
    )
    recorded_module.sql(f"INSERT INTO delta.`{path}` VALUES {', '.join(rows(names, 0))}")
    recorded_module.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN x TO i")
    recorded_module.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN late INT")
    recorded_module.sql(f"INSERT INTO delta.`{path}` VALUES {', '.join(rows([*COLUMNS], 1))}")
    recorded_module.sql(f"DELETE FROM delta.`{path}` WHERE i = 7 AND t > 0")
    return path


def rows(names: Sequence[str], shift: int) -> Iterator[str]:
    """Rows in which each value and null of a column meets others of the other columns."""
    for row in range(ROWS):
        cells = []
        for at, name in enumerate(names):
            kind, values, _ = COLUMNS[name]
            # Few partitions, and so few files.
            step = row // 14 if name in "pq" else row * (at + 1) + row // 7
            number = (step + at + shift) % (len(values) + 1)
            value = "NULL" if number == len(values) else f"'{values[number]}'"
            cells.append(f"CAST({value} AS {kind})")
        yield f"({', '.join(cells)})"


@pytest.mark.conformance("FEAT-12", "CM-05", "DV-01")
def test_the_same_rows_violate_a_condition_as_in_spark(
    recorded_spark: RecordedSpark, written: Path
) -> None:
    snapshot = open_table(str(written)).snapshot()
    schema = parse_schema(snapshot.metadata.schema_string or "")
    assert snapshot.counts.num_deletion_vectors
    check = LocalConstraintCheck(None)
    for example in range(examples(4)):
        random = Random(example if PLAY != "all" else None)
        texts: list[str] = []
        while len(texts) < CONDITIONS:
            text = draw_condition(random)
            if obstacle_without_spark(text, schema) is None:
                texts.append(text)
        ours = [check(snapshot, text, added_after=None) for text in texts]
        counted = ", ".join(
            f"count_if(NOT coalesce({text}, false)) AS c{at}" for at, text in enumerate(texts)
        )
        for ansi in ("true", "false"):
            with recorded_spark.setting("spark.sql.ansi.enabled", ansi):
                query = f"SELECT count(*) AS n, {counted} FROM delta.`{written}`"
                [line] = recorded_spark.rows(query)
            count, *theirs = json.loads(line).values()
            assert {checked.rows for checked in ours} == {count}
            differing = [
                (text, checked.violations, number)
                for text, checked, number in zip(texts, ours, theirs, strict=True)
                if checked.violations != number
            ]
            assert not differing, ansi
