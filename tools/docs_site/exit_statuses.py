"""Exit statuses and the errors behind them."""

from __future__ import annotations

import inspect

from delta_maintenance import errors
from docs_site.markdown import code, table


def error_classes(_: str) -> str:
    """Every error of the library with its exit status."""
    rows = []
    for name, member in vars(errors).items():
        if inspect.isclass(member) and issubclass(member, errors.DeltaMaintenanceError):
            meaning = " ".join((member.__doc__ or "").split())
            retry = "yes" if member.retryable else "no"
            rows.append((code(name), str(member.exit_status), retry, meaning))
    return table(("error", "exit status", "may succeed if repeated", "meaning"), rows)
