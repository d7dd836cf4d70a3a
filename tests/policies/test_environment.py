"""The environment of a run, and the arguments that it replaces."""

from __future__ import annotations

from typing import Any, cast

import pytest

from delta_maintenance.policies.environment import RunEnvironment, separate_arguments


@separate_arguments
def reporting(*, environment: RunEnvironment | None = None) -> None:
    assert environment is not None and environment.progress is not None
    environment.progress("files", 1, 2)
    environment.progress("bytes rewritten", 3, None, unit="bytes")


def test_a_function_for_progress_of_version_0_1_is_not_told_the_unit() -> None:
    told: list[tuple[Any, ...]] = []
    with pytest.warns(DeprecationWarning, match="progress as part of environment"):
        cast(Any, reporting)(progress=lambda *report: told.append(report))
    assert told == [("files", 1, 2), ("bytes rewritten", 3, None)]


def test_a_function_for_progress_that_takes_the_unit_is_told() -> None:
    told: list[tuple[Any, ...]] = []

    def progress(*report: Any, unit: str = "count") -> None:
        told.append((*report, unit))

    with pytest.warns(DeprecationWarning, match="progress as part of environment"):
        cast(Any, reporting)(progress=progress)
    assert told == [("files", 1, 2, "count"), ("bytes rewritten", 3, None, "bytes")]
