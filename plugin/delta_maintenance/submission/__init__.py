"""Submission of Spark jobs: specification, files, and the requests of each platform.

Imports neither PySpark nor an orchestrator, so that all submitters can share it.
"""

from __future__ import annotations

from typing import Any


class JobLeftRunningError(BaseException):
    """Ends a run whose Spark job runs on without this process.

    Not an `Exception`, because it is no failure, and nothing may treat it as one. The lease of the
    table is kept.
    """

    # `policies.paused`, whose modules are too heavy for a process that only parses Dags.
    operation: Any = None
    """The `PausedOperation` under way, once it is known."""
    run: Any = None
    """The `PausedRun` to continue, once it is known."""
