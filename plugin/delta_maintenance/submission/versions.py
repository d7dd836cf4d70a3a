"""The oldest supported version of Spark."""

from __future__ import annotations

import re
from pathlib import Path

from delta_maintenance.dependencies import numbers_of
from delta_maintenance.errors import InvalidRequestError

OLDEST_SPARK = "3.5"


def require_spark(version: str, *, found: str) -> None:
    """Raises `InvalidRequestError` for a version that is too old; `found` says where it is."""
    if numbers_of(version) < numbers_of(OLDEST_SPARK):
        raise InvalidRequestError(
            f"{found} is Spark {version}, and the jobs need Spark {OLDEST_SPARK} or newer",
            remedy=f"install 'pyspark>={OLDEST_SPARK}', or choose a cluster with such a Spark",
        )


def spark_version(home: Path) -> str | None:
    """Returns the version of a SPARK_HOME, or of the package pyspark; None if it has none."""
    for file in (home / "version.py", home / "python" / "pyspark" / "version.py"):
        if file.is_file() and (found := re.search(r"['\"]([0-9][^'\"]*)['\"]", file.read_text())):
            return found[1]
    return None
