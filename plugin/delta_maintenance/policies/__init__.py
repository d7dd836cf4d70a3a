"""Policies: which tables need which maintenance and when, and running it."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    approval="ApprovedPlan PLAN_LIFE PendingPlan PutOff",
    assess="NewestSnapshots assess_table",
    assessments="AssessmentEntry AssessmentStore HISTORY MAX_BYTES UnreadableEntry",
    execute="RunEnvironment",
    leases="Leases",
    models="AssessedOperation Assessment LastRun MaintainedVersion OperationOutcome RunResult",
)
