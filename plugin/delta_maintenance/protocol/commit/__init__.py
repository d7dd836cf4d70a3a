"""Commits: the actions to write, their rules, their text and their conflicts."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    conflicts="Attempt BACKFILL ConcurrentCommit IsolationLevel Rule",
    staged="ReadSet StagedActions removes_of staged_adds staged_removes",
)
