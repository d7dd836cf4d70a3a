"""`add-constraint`: plans, commits and concurrent writers.

The rows are checked by a fake of the tests; `tests/spark` has the real check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance.address import Address
from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.operations import add_constraint
from delta_maintenance.operations.add_constraint import (
    AddConstraintOptions,
    AddConstraintPlan,
    AddConstraintResult,
    CheckedRows,
    ViolatingFile,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put
from delta_maintenance.table.read import Snapshot
from tests.support.suite.play import examples
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(hours=1)
KEY = "delta.constraints.positive"


def plan(table: TableBuilder, **options: Any) -> AddConstraintPlan:
    given_options = {"name": "positive", "expression": "id > 0"} | options
    return add_constraint.plan(
        table.open().snapshot(), AddConstraintOptions(**given_options), context=RunContext.at(NOW)
    )


Meanwhile = Callable[[], object]


class Check:
    """Finds one row in each file; it violates the constraint if the file's name begins
    with `bad`.
    """

    def __init__(self, *meanwhile: Meanwhile) -> None:
        self.meanwhile = list(meanwhile)
        self.checks: list[tuple[int, int | None]] = []

    def __call__(
        self, snapshot: Snapshot, expression: str, *, added_after: int | None
    ) -> CheckedRows:
        assert expression == "id > 0"
        self.checks.append((snapshot.version, added_after))
        found = CheckedRows()
        for batch in snapshot.log.scan(fields={"add": ("path",)}):
            for row in batch.adds.to_pylist():
                if added_after is None or row["_commit_version"] > added_after:
                    bad = row["path"].startswith("bad")
                    worst = (ViolatingFile(path=row["path"], rows=1, violations=1),) if bad else ()
                    found += CheckedRows(
                        files=1, rows=1, violations=bad, violating_files=bad, worst_files=worst
                    )
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return found


def apply(table: TableBuilder, planned: AddConstraintPlan, check: Check) -> AddConstraintResult:
    # As an orchestrator hands it on.
    planned = AddConstraintPlan.from_json(json.loads(json.dumps(planned.to_json())))
    result = add_constraint.apply(
        table.open(), planned, context=RunContext.at(NOW, engine=check, sleep=lambda _: None)
    )
    assert AddConstraintResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    return result


def built(
    *more: log.Action,
    protocol: log.Action | None = None,
    configuration: Mapping[str, str] | None = None,
    store: MemoryStore | None = None,
) -> TableBuilder:
    table = TableBuilder(store)
    files = log.add("a", size=10), log.add("b", size=20)
    metadata = log.metadata(configuration=configuration)
    table.commit([protocol or log.protocol(), metadata, *files, *more])
    return table


def configuration(table: TableBuilder) -> Mapping[str, str]:
    return table.open().snapshot().metadata.configuration


@pytest.mark.conformance("FEAT-12", "FEAT-18")
def test_the_plan_reports_the_reads_and_the_changes_for_clients() -> None:
    table = built(
        log.add("c", size=5, dv=log.deletion_vector()), protocol=log.features("deletionVectors")
    )
    before = table.names()
    planned = plan(table, name=" Positive ")
    assert (planned.engine, planned.num_files, planned.total_size) == ("local", 3, 35)
    assert (planned.num_deletion_vectors, planned.is_noop) == (1, False)
    [change] = planned.changes
    assert (change.name, change.before, change.after) == (KEY, None, "id > 0")
    assert planned.added_features == ("checkConstraints",)
    assert any("DuckDB" in cut.client for cut in planned.cut_off)
    assert table.names() == before


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("idd > 0", "the table has no column idd; name id, if that was meant"),
        ("id > 0 AND NOT zzz IS NULL", "the table has no column zzz; name one of its columns: id"),
        ("`ID` > 0", None),
        ("current_date >= '2024-01-01'", None),
        ("length(wrong) > 0", None),
    ],
)
def test_a_misspelt_column_is_named_without_spark(expression: str, problem: str | None) -> None:
    """Of expressions that only Spark reads, Spark says so."""
    if problem is None:
        assert not plan(built(), expression=expression).is_noop
        return
    with pytest.raises(InvalidRequestError) as caught:
        plan(built(), expression=expression)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("protocol", "writer", "listed"),
    [
        (log.protocol(1, 1), 7, ("checkConstraints",)),
        (log.protocol(1, 2), 3, None),
        (log.protocol(1, 4), 4, None),
        (log.protocol(2, 5), 5, None),
        (log.features("deletionVectors"), 7, ("deletionVectors", "checkConstraints")),
        (log.protocol(1, 7, writer_features=["checkConstraints"]), 7, ("checkConstraints",)),
    ],
    ids=str,
)
def test_the_protocol_gets_what_constraints_need_and_nothing_else(
    protocol: log.Action, writer: int, listed: tuple[str, ...] | None
) -> None:
    table = built(protocol=protocol)
    assert apply(table, plan(table), Check()).status == "committed"
    snapshot = table.open().snapshot()
    assert snapshot.protocol.min_writer_version == writer
    assert set(snapshot.protocol.writer_features or ()) == set(listed or ())
    assert snapshot.metadata.configuration == {KEY: "id > 0"}


def test_the_commit_reads_like_one_of_delta_spark() -> None:
    table = built()
    result = apply(table, plan(table, name="Positive", expression="  id > 0 "), Check())
    assert (result.version, result.attempts, result.checks) == (1, 1, 1)
    assert result.checked == CheckedRows(files=2, rows=2)
    lines = [json.loads(line) for line in table.read(f"{1:020d}.json").splitlines()]
    assert [next(iter(line)) for line in lines] == ["commitInfo", "protocol", "metaData"]
    info = lines[0]["commitInfo"]
    assert info["operation"] == "ADD CONSTRAINT"
    assert info["operationParameters"] == {"name": "Positive", "expr": "id > 0"}
    assert (info["isolationLevel"], info["isBlindAppend"]) == ("Serializable", False)


def test_rows_that_violate_it_end_the_operation_without_a_commit() -> None:
    table = built(log.add("bad"))
    result = apply(table, plan(table), Check())
    assert (result.status, result.version, result.checks) == ("violated", 0, 1)
    assert result.problem is not None and "1 of 3 rows, in 1 of 3 files" in result.problem
    assert result.checked.worst_files == (ViolatingFile(path="bad", rows=1, violations=1),)
    assert result.changes == result.added_features == () and table.open().snapshot().version == 0


@pytest.mark.parametrize(
    ("lines", "status", "checks"),
    [
        ([log.add("c")], "committed", [(0, None), (1, 0)]),
        ([log.add("bad")], "violated", [(0, None), (1, 0)]),
        ([log.add("c", dataChange=False), log.remove("a", dataChange=False)], "committed",
         [(0, None), (1, 0)]),
        ([log.remove("a")], "committed", [(0, None), (1, 0)]),
        ([log.txn("app", 1)], "committed", [(0, None)]),
        ([log.metadata(description="new")], "committed", [(0, None), (1, None)]),
        ([log.metadata(configuration={KEY: "id > 0"})], "conflict", [(0, None)]),
        ([log.protocol(1, 4)], "conflict", [(0, None)]),
    ],
    ids=["append", "violating append", "rearrangement", "removal", "transaction", "metadata",
         "the same", "protocol"],
)  # fmt: skip
def test_commits_after_the_check_are_checked(
    lines: list[log.Action], status: str, checks: list[tuple[int, int | None]]
) -> None:
    table = built()
    check = Check(lambda: table.commit(lines))
    result = apply(table, plan(table), check)
    assert (result.status, check.checks) == (status, checks)
    assert (KEY in configuration(table)) == (status == "committed" or "metaData" in lines[0])
    assert result.version == (2 if status == "committed" else 1)


def test_checked_rows_count_once() -> None:
    table = built()
    check = Check(*(lambda n=n: table.commit([log.add(f"late{n}")]) for n in range(3)))
    result = apply(table, plan(table), check)
    assert (result.status, result.checks, result.checked.files) == ("committed", 4, 5)
    assert check.checks == [(0, None), (1, 0), (2, 1), (3, 2)]


def test_a_table_with_constant_commits_ends_as_a_conflict() -> None:
    table = built()
    check = Check(*(lambda n=n: table.commit([log.add(f"late{n}")]) for n in range(100)))
    result = apply(table, plan(table), check)
    assert (result.status, result.checks) == ("conflict", 10)
    assert result.problem is not None and "was committed first" in result.problem
    assert KEY not in configuration(table)


@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from(["good", "bad", "gone", "swap"]), max_size=6))
def test_a_constraint_is_never_committed_over_a_violating_row(others: list[str]) -> None:
    table = built()

    def act(number: int, kind: str) -> None:
        names = {"good": "good", "bad": "bad", "gone": "good", "swap": "bad"}
        lines = [log.add(f"{names[kind]}{number}")]
        table.commit(lines)
        if kind in ("gone", "swap"):
            table.commit([log.remove(f"{names[kind]}{number}")])

    check = Check(*(lambda n=n, kind=kind: act(n, kind) for n, kind in enumerate(others)))
    result = apply(table, plan(table), check)
    live = table.open().snapshot().live_files()["path"].to_pylist()
    if result.status == "committed":
        assert not any(path.startswith("bad") for path in live)
    else:
        assert result.status == "violated" and "bad" in others
    assert (KEY in configuration(table)) == (result.status == "committed")


def test_an_existing_constraint_is_not_added_again() -> None:
    table = built(
        protocol=log.protocol(1, 3), configuration={"delta.constraints.Positive": "id > 0"}
    )
    planned = plan(table)
    assert planned.is_noop and planned.num_files == 0 and "already" in planned.reason
    result = add_constraint.apply(table.open(), planned)
    assert (result.status, result.checks) == ("nothing-to-do", 0)


def test_a_repeated_task_ends_as_done_without_a_check() -> None:
    table = built()
    planned = plan(table, operation_id="task-1")
    assert apply(table, planned, Check()).status == "committed"
    table.commit([log.add("bad")], version=2)
    check = Check()
    assert (apply(table, planned, check).status, check.checks) == ("already-done", [])


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"name": " "}, InvalidRequestError, "not a valid name"),
        ({"name": "__CHAR_VARCHAR_STRING_LENGTH_CHECK__"}, InvalidRequestError, "not a valid name"),
        ({"expression": " \n"}, InvalidRequestError, "expression is empty"),
        ({"name": "TAKEN"}, RefusedError, "--unset delta.constraints.taken"),
        ({"expression": 1}, InvalidRequestError, "expression"),
    ],
    ids=str,
)
def test_constraints_that_cannot_be_added(
    options: dict[str, Any], kind: type[DeltaMaintenanceError], said: str
) -> None:
    table = built(protocol=log.protocol(1, 3), configuration={"delta.constraints.taken": "id < 9"})
    with pytest.raises(kind, match=said):
        plan(table, **options)


@pytest.mark.conformance("FEAT-11")
def test_dormant_constraints_are_not_activated_unseen() -> None:
    sleeping = {"delta.constraints.other": "id < 9"}
    with pytest.raises(RefusedError, match=r"delta\.constraints\.other"):
        plan(built(configuration=sleeping))
    # The rows are checked before the dormant constraint itself is activated.
    table = built(log.add("bad"), configuration={KEY: "id > 0"})
    planned = plan(table)
    assert (planned.is_noop, planned.changes) == (False, ())
    assert apply(table, planned, Check()).status == "violated"
    table.commit([log.remove("bad")])
    assert apply(table, plan(table), Check()).status == "committed"
    assert table.open().snapshot().protocol.min_writer_version == 3


def test_unsupported_features_are_refused_before_any_check() -> None:
    for protocol in (log.protocol(1, 7, writer_features=["news"]), log.features("catalogManaged")):
        with pytest.raises(UnsupportedFeatureError):
            plan(built(protocol=protocol))


def test_a_replaced_or_unwritable_table_is_refused_before_any_check() -> None:
    table = built()
    planned = plan(table)
    check = Check()
    table.commit([log.metadata(id="another")])
    with pytest.raises(RefusedError, match="was replaced"):
        apply(table, planned, check)
    other = built()
    planned = plan(other)
    other.commit([log.protocol(1, 7, writer_features=["news"])])
    with pytest.raises(UnsupportedFeatureError, match="news"):
        apply(other, planned, check)
    assert check.checks == []


class Bucket(MemoryStore):
    """A memory that says it is on S3."""

    def __init__(self) -> None:
        super().__init__()
        self.address = Address.parse("s3://bucket/table")

    @property
    def addresses(self) -> tuple[str, ...]:
        return (self.root,)


def test_on_s3_other_writers_are_required_before_any_check() -> None:
    table = built(store=Bucket())
    check = Check()
    with pytest.raises(RefusedError, match="other writers of this table on S3"):
        apply(table, plan(table), check)
    assert check.checks == []
    assert apply(table, plan(table, other_writers="none"), check).status == "committed"


class Failing(Check):
    """Fails like a check of a damaged file."""

    def __call__(self, *arguments: Any, **more: Any) -> CheckedRows:
        raise CorruptTableError("the data file is gone", file="a")


def test_an_error_of_the_check_names_its_table() -> None:
    table = built()
    with pytest.raises(CorruptTableError, match="table memory") as raised:
        apply(table, plan(table), Failing())
    assert raised.value.file == "a" and table.open().snapshot().version == 0


def test_found_rows_add_up_and_keep_the_worst_files() -> None:
    def found(*files: tuple[str, int]) -> CheckedRows:
        worst = tuple(ViolatingFile(path=p, rows=9, violations=n) for p, n in files)
        return CheckedRows(files=9, rows=90, violations=7, violating_files=3, worst_files=worst)

    both = found(("a", 5), ("b", 1), ("c", 1)) + found(("d", 6), ("e", 5), ("f", 2))
    assert (both.files, both.rows, both.violations, both.violating_files) == (18, 180, 14, 6)
    assert [file.path for file in both.worst_files] == ["d", "a", "e", "f", "b"]


def test_after_a_lost_put_the_check_is_repeated() -> None:
    class Raced(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.raced = False

        def put_if_absent(self, path: str, data: bytes) -> Put:
            # At the last moment, after every check.
            if path.endswith("1.json") and not self.raced:
                self.raced = True
                table.commit([log.add("bad")])
            return super().put_if_absent(path, data)

    table = built(store=Raced())
    check = Check()
    result = apply(table, plan(table), check)
    assert (result.status, check.checks) == ("violated", [(0, None), (1, 0)])
