"""The oldest supported version of Spark."""

from __future__ import annotations

import re
from pathlib import Path

from delta_maintenance.dependencies import numbers_of
from delta_maintenance.errors import InvalidRequestError

OLDEST_SPARK = "3.5"
_NO_PANDAS = re.compile("pandas >= [0-9.]+ must be installed", re.IGNORECASE)


def require_spark(version: str, *, found: str) -> None:
    """Raises `InvalidRequestError` for a version that is too old; `found` says where it is."""
    if numbers_of(version) < numbers_of(OLDEST_SPARK):
        raise InvalidRequestError(
            f"{found} is Spark {version}, and the jobs need Spark {OLDEST_SPARK} or newer",
            remedy=f"install 'pyspark>={OLDEST_SPARK}', or choose a cluster with such a Spark",
        )


def remedy_without_pandas(problem: str) -> str | None:
    """Returns what to do about an error of PySpark that needs pandas; None for other errors."""
    if _NO_PANDAS.search(problem) is None:
        return None
    return "install it on the driver and the executors: pip install 'delta-maintenance[spark]'"


def spark_version(home: Path) -> str | None:
    """Returns the version of a SPARK_HOME, or of the package pyspark; None if it has none."""
    for file in (home / "version.py", home / "python" / "pyspark" / "version.py"):
        if file.is_file() and (found := re.search(r"['\"]([0-9][^'\"]*)['\"]", file.read_text())):
            return found[1]
    return None
