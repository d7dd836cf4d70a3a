"""Options as people write them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core import find, operations
from delta_maintenance.operations.core.given_options import check_options, read_options
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.vacuum import VacuumOptions


@pytest.mark.parametrize("text", ["7 days 12 hours", "7d 12h", "P7DT12H"])
def test_durations_are_read_as_on_the_command_line(text: str) -> None:
    read = read_options(find("vacuum"), {"retention": text})
    assert read == VacuumOptions(retention=timedelta(days=7, hours=12))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"retentoin": "7 days"}, "vacuum has no option 'retentoin'; give 'retention', if that"),
        ({"qwertz": 1}, "vacuum has no option 'qwertz'; give some of mode, retention"),
        ({"retention": "soon"}, "retention: 'soon' is not a duration; write it like '7d'"),
        ({"mode": "liet"}, "mode: Input should be 'full', 'lite' or 'inventory'"),
        ({"keep_versions": [-1]}, "keep_versions.0: Input should be greater than or equal to 0"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_meant(given: dict[str, Any], said: str) -> None:
    for read in (read_options, check_options):
        with pytest.raises(InvalidRequestError, match=f"^{re.escape(said)}"):
            read(find("vacuum"), given)


def test_missing_options_are_named_but_may_come_from_a_policy() -> None:
    given = {"column": "day"}
    with pytest.raises(InvalidRequestError, match="expire lacks the option older_than; give"):
        read_options(find("expire"), given)
    check_options(find("expire"), given)
    whole = read_options(find("expire"), {**given, "older_than": "400 days"})
    assert whole == ExpireOptions(column="day", older_than=timedelta(days=400))


def test_the_example_of_every_operation_is_allowed() -> None:
    for record in operations():
        check_options(record, record.example)
        read_options(record, record.example)
