"""The Spark job for Dagster Pipes, submitted in place of `spark/job.py`.

Takes the same arguments and writes the same report. Runs where the driver runs, so it needs
`dagster-pipes` and not Dagster.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TextIO

from dagster_pipes import PipesContext, open_dagster_pipes

from delta_maintenance.spark import job
from delta_maintenance.submission.job_report import DriverLine


class _Relay:
    """Standard output of the job; lines for people are sent through Pipes as well."""

    def __init__(self, below: TextIO, pipes: PipesContext) -> None:
        self._below = below
        self._pipes = pipes
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if (message := DriverLine.read(line).message) is not None:
                self._pipes.log.info(message)
        return self._below.write(text)

    def flush(self) -> None:
        self._below.flush()


def main() -> int:
    """Runs one job and returns its exit status."""
    with open_dagster_pipes() as pipes, redirect_stdout(_Relay(sys.stdout, pipes)):
        return job.main()


if __name__ == "__main__":
    sys.exit(main())
