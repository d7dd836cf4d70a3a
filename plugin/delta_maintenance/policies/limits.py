"""The limits of a policy, compared with what an operation would delete."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.rules import Limits

_MANY = 1000
"""The number of files from which on a share is meaningful."""
_OWN_SHARE = 0.5
"""The share of all files from which on vacuum itself refuses."""


def beyond_deletions(limits: Limits, files: int, size: int, *, looked_at: int | None) -> str | None:
    """Returns the first limit that this number of files or bytes exceeds, as one clause.

    `looked_at` is the number of data files to which the share refers; None if a share is not
    meaningful.
    """
    for found, unit, most in (
        (files, "file", limits.max_deleted_files),
        (size, "byte", limits.max_deleted_bytes),
    ):
        if most is not None and found > most:
            return f"{count_text(found, unit)} would be deleted, and {int(most):,} are allowed"
    if limits.max_deleted_share is not None and looked_at and files > _MANY:
        share = files / looked_at
        if share > limits.max_deleted_share:
            return (
                f"{share:.0%} of {looked_at} data files would be deleted, and "
                f"{limits.max_deleted_share:.0%} are allowed"
            )
    return None


def says_more_than_vacuum(limits: Limits) -> bool:
    """Whether there are limits on deletions in addition to those of vacuum itself."""
    share = limits.max_deleted_share
    return (
        limits.max_deleted_files is not None
        or limits.max_deleted_bytes is not None
        or (share is not None and share < _OWN_SHARE)
    )
