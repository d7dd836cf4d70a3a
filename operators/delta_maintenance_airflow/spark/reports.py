"""The reports of a task's jobs, and explanations for jobs without a report."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.address import Address

if TYPE_CHECKING:
    from delta_maintenance.storage import Store
    from delta_maintenance.submission.job_report import JobReport

_STATUS = re.compile(r"Error code is: (-?\d+)")
"""The exit status of `spark-submit` in the error of the provider."""


class Reports:
    """The reports of the tries of one task, each with a unique name."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._read: set[str] = set()

    def new_name(self) -> str:
        """Returns the name of a new job: that of its report, without the extension."""
        return f"{self._key}.{clock.new_id()}"

    def unread(self) -> Iterator[JobReport]:
        """Yields the reports that are new since the last call, the newest first."""
        from delta_maintenance.submission.job_report import JobReport

        listed = []
        for status in self._store.list_from("", f"{self._key}."):
            if not status.path.startswith(f"{self._key}."):
                break
            if status.path.endswith(".json") and status.path not in self._read:
                listed.append((status.modified_ms, status.path))
        for _, path in sorted(listed, reverse=True):
            self._read.add(path)
            yield JobReport.from_json(json.loads(self._store.read(path)))


def report_address(folder: str, name: str) -> str:
    """Returns the address of the report of a job."""
    return str(Address.parse(folder).join(f"{name}.json"))


def without_report(failure: Exception | None) -> str:
    """Explains why a job left no report. The first line is for people; that of the provider
    follows.
    """
    if failure is None:
        return "the Spark job succeeded, but without a report"
    found = _STATUS.search(str(failure))
    if found is None:
        return str(failure)
    return f"{how_driver_ended(int(found[1]))}\n{failure}"


def how_driver_ended(status: int) -> str:
    """Describes a driver that ended with this exit status and without a report."""
    killed = -status if status < 0 else status - 128
    if killed == signal.SIGKILL:
        return (
            "the Spark driver was killed (SIGKILL), perhaps because the worker ran out of memory: "
            "give the worker more, or lower spark.driver.memory in spark_conf; another try is safe"
        )
    if killed == signal.SIGTERM:
        return "the Spark driver was terminated (SIGTERM) before its end; another try is safe"
    return f"the Spark job ended with exit status {status} and without a report"
