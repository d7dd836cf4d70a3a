"""Copies the output of a Spark job into the log of its task."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator

from delta_maintenance.redaction import redact
from delta_maintenance.submission.job_report import (
    APPLICATION_LINE,
    OWN_LINE,
    REPORT_LINE,
    interface_of,
)

_log = logging.getLogger(__name__)
_TITLE = "Log of Spark"
_YARN_INTERFACE = re.compile(r"tracking URL: (https?://\S+)")


class JobOutput:
    """Sorts the output of `spark-submit`: lines for people are logged, Spark's own are folded.

    `on_interface` is called with the address of the application's user interface when it becomes
    known, and whenever it changes.
    """

    def __init__(self, on_interface: Callable[[str], None]) -> None:
        self._on_interface = on_interface
        self._interface: str | None = None
        self._is_folded = False

    def sift(self, lines: Iterable[str]) -> Iterator[str]:
        """Logs the lines for people and yields those of Spark."""
        try:
            for line in map(redact, lines):
                text = line.strip()
                if text.startswith(OWN_LINE):
                    self._fold(False)
                    _log.info("%s", text.removeprefix(OWN_LINE))
                    continue
                if text.startswith(REPORT_LINE):
                    continue
                self._look_for_interface(text)
                if not text.startswith(APPLICATION_LINE):
                    self._fold(True)
                    yield line
        finally:
            self._fold(False)

    def _look_for_interface(self, text: str) -> None:
        if text.startswith(APPLICATION_LINE):
            address = interface_of(text)
        else:
            found = _YARN_INTERFACE.search(text)
            address = found.group(1) if found else None
        if address is not None and address != self._interface:
            self._interface = address
            self._fold(False)
            _log.info("Spark UI: %s", address)
            self._on_interface(address)

    def _fold(self, folded: bool) -> None:
        """Airflow shows the lines between these markers as one line, which can be opened."""
        if folded is not self._is_folded:
            _log.info("::group::%s" if folded else "::endgroup::", *([_TITLE] if folded else []))
            self._is_folded = folded
