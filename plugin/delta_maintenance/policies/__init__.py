"""Policies: which tables need which maintenance and when, and running it."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    assess="NewestSnapshots assess_table",
    assessments="AssessmentEntry AssessmentStore HISTORY MAX_BYTES UnreadableEntry",
    models="AssessedOperation Assessment LastRun MaintainedVersion OperationOutcome RunResult",
)
