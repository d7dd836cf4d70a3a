"""Table properties: defaults, spellings and invalid values."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.protocol.features import properties
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.quantities import parse_interval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval 30 days", timedelta(days=30)),
        ("INTERVAL 1 WEEK", timedelta(days=7)),
        ("7 days 12 hours", timedelta(days=7, hours=12)),
        ("interval 1 day 1 day", timedelta(days=2)),
        ("  interval\t2   weeks 3 minutes  ", timedelta(weeks=2, minutes=3)),
        ("1 second", timedelta(seconds=1)),
        ("1.5 seconds", timedelta(milliseconds=1500)),
        (".25 second", timedelta(milliseconds=250)),
        ("2. seconds", timedelta(seconds=2)),
        ("1.1234567 seconds", timedelta(seconds=1, microseconds=123456)),
        ("1500 milliseconds 7 microseconds", timedelta(milliseconds=1500, microseconds=7)),
        ("interval 0 hours", timedelta()),
        ("+1 day", timedelta(days=1)),
        ("2 days -1 hour", timedelta(days=1, hours=23)),
        ("interval 168 hours", timedelta(days=7)),
        ("interval 999999999 days", timedelta(days=999_999_999)),
    ],
)
def test_valid_intervals(text: str, expected: timedelta) -> None:
    assert parse_interval(text) == expected


@pytest.mark.conformance("CLEAN-13")
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "interval",
        "days",
        "7",
        "7days",
        "interval7 days",
        "interval 1 month",
        "1 months",
        "interval 1 year",
        "1 quarter",
        "1 nanosecond",
        "-1 day",
        "interval 1 hour -2 hours",
        "1.5 days",
        ". seconds",
        "1.1234567890 seconds",
        "one day",
        "1 day,",
        "1 day2 hours",
        "1 dayss",
        "P7D",
        "1000000000 days",
        "999999999999999999 weeks",
        f"{'9' * 5000} days",
        "٧ days",
        "interval interval 1 day",
        "interval " + "1 day " * 200_000,
    ],
)
def test_intervals_without_fixed_length_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="not a valid interval"):
        parse_interval(text)


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=100_000)), st.booleans())
def test_rendered_intervals_are_parsed(length: timedelta, prefix: bool) -> None:
    text = f"{length.days} days {length.seconds} seconds {length.microseconds} microseconds"
    assert parse_interval(f"interval {text}" if prefix else text) == length


@given(st.text())
def test_arbitrary_text_raises_only_invalid_request(text: str) -> None:
    with contextlib.suppress(InvalidRequestError):
        assert parse_interval(text) >= timedelta()


@pytest.mark.conformance("VAC-07")
def test_defaults_without_any_property() -> None:
    found = TableProperties.from_configuration({"comment": "x", "delta.unknown": "y"})
    assert found == TableProperties()
    assert found.checkpoint_interval == 10
    assert found.log_retention == timedelta(days=30)
    assert found.deleted_file_retention == timedelta(days=7)
    assert found.set_transaction_retention is None
    assert (found.write_stats_as_json, found.write_stats_as_struct) == (True, False)
    assert found.enable_expired_log_cleanup
    assert found.problems == ()


@pytest.mark.conformance("CLEAN-13")
def test_every_property_is_read_from_its_own_key() -> None:
    samples = {
        properties.parse_boolean: ("TRUE", True),
        parse_interval: ("interval 11 days", timedelta(days=11)),
        properties._policy: ("v2", "v2"),
        str: ("text", "text"),
    }
    for field in fields(TableProperties):
        if field.name == "problems":
            continue
        key, parse = properties._PROPERTIES[field.name]
        text, value = samples.get(parse, ("11", 11))
        if field.default is True:
            text, value = "False", False
        found = TableProperties.from_configuration({key: text})
        changed = {f.name for f in fields(found) if getattr(found, f.name) != f.default}
        assert changed == {field.name}
        assert getattr(found, field.name) == value
    assert len({key for key, _ in properties._PROPERTIES.values()}) == len(properties._PROPERTIES)


@pytest.mark.conformance("CLEAN-13")
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("delta.logRetentionDuration", "interval 1 month"),
        ("delta.deletedFileRetentionDuration", ""),
        ("delta.enableExpiredLogCleanup", "yes"),
        ("delta.checkpointInterval", "0"),
        ("delta.checkpointInterval", "ten"),
        ("delta.checkpointInterval", "1e1"),
        ("delta.checkpointInterval", "9223372036854775808"),
        ("delta.checkpointPolicy", "V2"),
        ("delta.requireCheckpointProtectionBeforeVersion", "-1"),
        ("delta.dataSkippingNumIndexedCols", "-2"),
        ("delta.appendOnly", "true "),
    ],
)
def test_invalid_values_are_reported_and_the_default_used(key: str, text: str) -> None:
    found = TableProperties.from_configuration({key: text, "delta.enableChangeDataFeed": "true"})
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"{key}: {text!r} is ")
    assert found == TableProperties(enable_change_data_feed=True, problems=found.problems)


@pytest.mark.conformance("FEAT-10")
def test_keys_are_case_sensitive() -> None:
    found = TableProperties.from_configuration({"delta.appendonly": "true"})
    assert found == TableProperties()


def test_corpus_configurations_are_read_without_problems(corpus: Path) -> None:
    seen = 0
    for path in corpus.rglob("_delta_log/*.json"):
        for line in path.read_text(encoding="utf-8").split("\n"):
            if '"metaData"' in line:
                try:
                    configuration = json.loads(line)["metaData"].get("configuration") or {}
                except (ValueError, KeyError):
                    continue
                seen += len(configuration)
                assert TableProperties.from_configuration(configuration).problems == (), path
    assert seen > 100
