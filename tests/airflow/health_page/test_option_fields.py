"""The fields of the form, as they follow from the records of operations."""

from __future__ import annotations

from dataclasses import MISSING
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.operations.core import AnyOperation, find, flag_fields, operations
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.policies.definition import Policy
from delta_maintenance_airflow.health_page.option_fields import (
    OptionField,
    option_fields,
    policy_values,
    read_answer,
)
from tests.support.tables.assessed_tables import assessment

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
RECORDS = [pytest.param(record, id=record.name) for record in operations()]


def fields_of(operation: str, by_policy: dict[str, Any] | None = None) -> dict[str, OptionField]:
    return {each.name: each for each in option_fields(find(operation), by_policy)}


@pytest.mark.parametrize("record", RECORDS)
def test_every_option_with_a_flag_has_a_field(record: AnyOperation) -> None:
    fields = option_fields(record)
    names = [each.name for each in fields]
    flags = {each.name: each for each in flag_fields(record.options)}
    assert set(flags) - set(names) <= {"operation_id", "operation_since"}
    assert len(names) == len(set(names)) and set(names) <= set(flags)
    for each in fields:
        assert each.title and not each.help[:1].islower() and "--" not in each.help
        assert each.required == (flags[each.name].default is MISSING)
        assert (each.kind == "choice") == bool(each.choices)
    order = [(each.shortens, not each.required) for each in fields]
    assert order == sorted(order)
    assert sum(not each.advanced and not each.shortens for each in fields) <= 7


def test_kinds_bounds_units_and_defaults_follow_from_the_record() -> None:
    optimize, vacuum = fields_of("optimize"), fields_of("vacuum")
    assert optimize["target_bytes"].kind == "size" and optimize["target_bytes"].least == 1
    percent = optimize["deleted_percent"]
    assert (percent.kind, percent.unit, percent.least, percent.default) == ("number", "%", 0, "5")
    assert optimize["min_files"].unit == "files" and optimize["min_files"].least == 2
    assert optimize["where"].kind == "sql" and optimize["int96"].kind == "switch"
    assert vacuum["retention"].kind == "duration"
    assert vacuum["mode"].choices == ("full", "lite", "inventory")
    assert vacuum["mode"].default == "full"
    assert vacuum["log_commits"].choices == ("yes", "no"), "without a choice the store decides"
    assert vacuum["keep_versions"].kind == "list"
    assert fields_of("set-properties")["properties"].kind == "mapping"
    assert fields_of("keep-version")["until"].kind == "instant"
    switch = fields_of("purge")["dropped_columns"]
    assert switch.title == "Also rewrite files with values of dropped columns" and switch.is_on
    assert optimize["int96"].title == "Rewrite files with timestamps of the old type INT96"
    assert optimize["int96"].help == "Reads all footers."
    assert optimize["deleted_percent"].help == "", "the field shows the default"
    assert optimize["max_duration"].example == "30 minutes"
    assert not fields_of("purge", {"dropped_columns": False})["dropped_columns"].is_on
    shortening = [name for name, each in vacuum.items() if each.shortens]
    assert shortening == ["allow_short_retention", "no_other_writers"]
    assert [*fields_of("add-constraint")][:2] == ["name", "expression"]


def test_the_value_of_the_policy_is_told_apart_from_the_default() -> None:
    given = {"retention": timedelta(days=14), "mode": "full", "foreign_files": True}
    fields = fields_of("vacuum", given)
    assert (fields["retention"].default, fields["retention"].by_policy) == ("14 days", True)
    assert (fields["mode"].default, fields["mode"].by_policy) == ("full", False)
    assert fields["foreign_files"].is_on and fields["foreign_files"].by_policy
    expire = fields_of("expire", {"column": "day", "older_than": timedelta(days=400)})
    assert not expire["column"].required and expire["column"].default == "day"


def test_the_policy_speaks_through_the_assessment_or_its_rule() -> None:
    policy = Policy.from_json(
        {
            "version": 1,
            "defaults": {"vacuum": {"retention": "14 days"}, "other_writers": "spark"},
            "tables": [{"name": "orders", "uri": "s3://lake/sales/orders"}],
        }
    )
    known, vacuum = assessment(), find("vacuum")
    values = policy_values(vacuum, policy, known)
    assert values["retention"] == timedelta(days=14) and values["other_writers"] == "spark"
    assert policy_values(vacuum, None, known) == {} == policy_values(vacuum, policy, None)
    checkpoint = policy_values(find("checkpoint"), None, known)
    assert checkpoint["kind"] == "auto", "its options are those of the assessment"


@pytest.mark.parametrize(
    ("operation", "name", "given", "option"),
    [
        ("optimize", "target_bytes", "64 MiB", 64 << 20),
        ("optimize", "min_files", "12", 12),
        ("optimize", "full", True, True),
        ("purge", "dropped_columns", False, False),
        ("vacuum", "keep_versions", ["3", " 5"], [3, 5]),
        ("vacuum", "log_commits", "no", False),
        ("vacuum", "retention", "30d", "30d"),
        ("vacuum", "clones", ["s3://lake/a", "s3://lake/b"], None),
        ("set-properties", "properties", ["a.b = c=d", "e=f"], {"a.b": "c=d", "e": "f"}),
        ("keep-version", "until", "2027-01-31T12:00:00Z", "2027-01-31T12:00:00Z"),
    ],
)
def test_texts_become_options(operation: str, name: str, given: Any, option: Any) -> None:
    answer = read_answer(find(operation), {name: given})
    if option is None:
        assert answer.options == {} and "any_address" in answer.problems[""]
    else:
        assert answer.problems == {} and answer.options == {name: option}


@pytest.mark.parametrize(
    ("operation", "name", "given", "said"),
    [
        ("optimize", "target_bytes", "huge", "'huge' is not a size; write it like '64 MiB'"),
        ("optimize", "target_bytes", "0", "greater than or equal to 1"),
        ("optimize", "min_files", "1", "greater than or equal to 2"),
        ("optimize", "min_files", "few", "valid integer"),
        ("optimize", "min_files", "--5", "valid integer"),
        ("optimize", "min_files", "9" * 5_000, "integer"),
        ("vacuum", "log_commits", [], "valid boolean"),
        ("vacuum", "retention", "long", "is not a duration; write it like"),
        ("vacuum", "mode", "light", "'full', 'lite' or 'inventory'"),
        ("vacuum", "keep_versions", ["a"], "valid integer"),
        ("set-properties", "properties", ["=x"], "not NAME=VALUE"),
        ("set-properties", "properties", ["a=b", "a=c"], "occurs twice"),
        ("keep-version", "until", "2027-01-31T12:00:00", "no time zone"),
    ],
)
def test_what_is_not_allowed_is_told_beside_its_field(
    operation: str, name: str, given: Any, said: str
) -> None:
    answer = read_answer(find(operation), {name: given})
    assert answer.options == {} and [*answer.problems] == [name]
    assert said in answer.problems[name]
    assert "Options" not in answer.problems[name]


def test_unknown_options_and_short_retentions_are_refused() -> None:
    unknown = read_answer(find("vacuum"), {"retentoin": "7 days"})
    assert "'retention', if that was meant" in unknown.problems[""]
    short = {"allow_short_retention": True, "no_other_writers": True}
    assert "may not shorten a retention" in read_answer(find("vacuum"), short).problems[""]
    allowed = read_answer(find("vacuum"), short, short_retention=True)
    assert allowed.problems == {} and allowed.options == short
    assert VacuumOptions.from_json(allowed.options).no_other_writers
