"""Known failures and alerts: a folder that Dagster shares with the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.policies.definition.alerts import AlertRules
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
    alerts: AlertRules = AlertRules()

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

    def tell(self, provided: Any, log: Any, failed: Iterable[str], *, title: str) -> None:
        """Tells owners about new failures of these tables. A lost message is a warning, and part of
        the next run's.
        """
        if self.alerts.default is None and not self.alerts.owners:
            return
        # Loads pyarrow, which loading definitions must not require.
        from delta_maintenance.policies.alerts import tell
        from delta_maintenance.policies.webhook import post_by_environment

        post = partial(post_by_environment, environment=os.environ)
        try:
            with self.opened(provided) as store:
                lost = tell(self.alerts, store, failed, post, title=title, now=clock.now())
        except DeltaMaintenanceError as error:
            lost = (error,)
        for each in lost:
            log.warning(str(each))

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
