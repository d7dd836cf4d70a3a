"""Known failures: a folder that Dagster shares with the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.policies.definition.storage import StorageRule
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference

if TYPE_CHECKING:
    from delta_maintenance.policies.assessments import AssessmentStore
    from delta_maintenance.policies.models import Assessment, RunResult


@dataclass(frozen=True, kw_only=True)
class SharedState:
    """The folder with the assessments of tables, in which failures are acknowledged."""

    uri: str
    storage: Reference[DeltaStorageResource]
    """How to reach the folder."""

    def keep(
        self, provided: Any, log: Any, assessment: Assessment, result: RunResult | None = None
    ) -> str | None:
        """Stores an assessment and a run; returns the acknowledgement of the failure, if there is
        one. `provided` are the resources of an execution. A folder that cannot be reached is a
        warning.
        """
        try:
            with self.opened(provided) as store:
                entry = store.save(assessment, result)
        except DeltaMaintenanceError as error:
            log.warning(f"{assessment.name}: the outcome cannot be stored: {error}")
            return None
        known = entry.acknowledged(now=clock.now())
        return str(known) if known is not None else None

    @contextmanager
    def opened(self, provided: Any) -> Iterator[AssessmentStore]:
        """Opens the folder for the duration of the block."""
        store = self.open(provided)
        try:
            yield store
        finally:
            store.close()

    def open(self, provided: Any) -> AssessmentStore:
        """Opens the folder. Nothing is read yet."""
        from delta_maintenance.policies.assessments import AssessmentStore

        storage = self.storage.resolve(provided)
        return AssessmentStore(self.uri, storage.storage_options(StorageRule(), uri=self.uri))
