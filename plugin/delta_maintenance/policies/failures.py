"""Errors on one table of a policy, none of which may end the run on the others."""

from __future__ import annotations

import logging

from delta_maintenance.errors import DeltaMaintenanceError, UnexpectedError

_logger = logging.getLogger(__name__)


def failure_of(error: Exception, *, where: str) -> DeltaMaintenanceError:
    """Returns an error of this library as it is. Any other is converted, and logged with its
    traceback.

    `where` names the table, and the operation if there is one.
    """
    if isinstance(error, DeltaMaintenanceError):
        return error
    # The message of a `MemoryError` is often empty.
    problem = ": ".join(part for part in (type(error).__name__, str(error)) if part)
    more = "give the process more memory, or " if isinstance(error, MemoryError) else ""
    found = UnexpectedError(problem, remedy=f"{more}see the log for the details")
    _logger.error("%s: %s", where, found.problem, exc_info=error)
    return found
