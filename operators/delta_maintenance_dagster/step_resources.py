"""The resources of a step: the stores and Spark of its tables, and the folder that it shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.core.policy_values import StorageRule
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference
from delta_maintenance_dagster.spark.resource import DeltaSparkResource
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance.policies.assessments import AssessmentStore
    from delta_maintenance.policies.clones import PolicyClones
    from delta_maintenance.policies.models import Assessment, RunResult

Context = dg.AssetExecutionContext | dg.OpExecutionContext


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
        from delta_maintenance.policies.entries import acknowledgement_text

        try:
            with self.opened(provided) as store:
                entry = store.save(assessment, result)
        except DeltaMaintenanceError as error:
            log.warning(f"{assessment.name}: the outcome cannot be stored: {error}")
            return None
        return acknowledgement_text(entry)

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


@dataclass(frozen=True, kw_only=True)
class Resources:
    """References to the resources of a table."""

    storage: Reference[DeltaStorageResource]
    spark: Reference[DeltaSparkResource]
    tables: tuple[DeltaTable, ...] = ()
    """The tables among which clones are searched for, with those of their policies."""
    others: tuple[Reference[DeltaStorageResource], ...] = ()
    """The storage of all of these tables."""

    @classmethod
    def for_all(
        cls,
        tables: Sequence[DeltaTable],
        *,
        storage: Reference[DeltaStorageResource],
        spark: Reference[DeltaSparkResource],
    ) -> Resources:
        """Returns the resources for tables among which clones are searched for."""
        names = {each.policy.rules.storage.connection for each in tables}
        if any(each.among is not None for each in tables):
            # Of patterns.
            names.add(None)
        others = tuple(storage.named(name) for name in names)
        return cls(storage=storage, spark=spark, tables=tuple(tables), others=others)

    def of(self, table: DeltaTable) -> Resources:
        """Returns the resources that the policy of a table names, or else these."""
        rules = table.policy.rules
        return replace(
            self,
            storage=self.storage.named(rules.storage.connection),
            spark=self.spark.named(rules.spark.connection),
        )

    @property
    def required(self) -> set[str]:
        """The resource keys that Dagster must provide."""
        own = self.storage.required | self.spark.required
        readers = (each for table in self.tables for each in table.policy.rules.readers)
        of_readers = (
            self.storage.named(each.storage.connection)
            for each in readers
            if each.storage is not None
        )
        ledgers = (table.among.ledger for table in self.tables if table.among is not None)
        of_ledgers = (
            self.storage.named(each.storage.connection) for each in ledgers if each is not None
        )
        others = (*self.others, *of_readers, *of_ledgers)
        return own.union(*(storage.required for storage in others))

    def clones(self, context: Context, name: str, state: SharedState | None) -> PolicyClones:
        """Returns the search for clones, which remembers between runs what it reads: in the folder
        of assessments if there is one, or else in Dagster's own folder on this host.
        """
        from delta_maintenance.policies.clones import PolicyClones
        from delta_maintenance.policies.discovery import Discovery, FailedSearches, discover
        from delta_maintenance.policies.session import kept_tables
        from delta_maintenance.storage import open_store

        provided = context.resources
        origin = context.run.remote_job_origin
        location = "" if origin is None else quote(origin.location_name, safe="")
        # Each step is a process of its own, which would read the logs of all tables anew.
        own = Path(context.instance.storage_directory(), "delta_maintenance", location, name)

        def options_at(rule: StorageRule, uri: str) -> Mapping[str, str]:
            storage = self.storage.named(rule.connection).resolve(provided)
            return storage.storage_options(rule, uri=uri)

        failures = {id(each.among): FailedSearches() for each in self.tables}

        def found() -> Discovery:
            then = [each.policy for each in self.tables if not each.kept]
            policies = {id(each.among): each.among for each in self.tables if each.among}
            now = [
                (each, discover(each, storage_options=options_at, failures=failures[key]))
                for key, each in policies.items()
            ]
            return Discovery(
                tables=(
                    *(each.policy for each in self.tables),
                    *(table for _, each in now for table in each.tables),
                ),
                # What the last refresh could list is known from there.
                unlisted=tuple(
                    failed
                    for policy, each in now
                    for failed in each.unlisted
                    if not kept_tables(policy, Discovery((), (failed,)), then)
                ),
                listed=tuple(part for _, each in now for part in each.listed),
                aliases=tuple(table for _, each in now for table in each.aliases),
            )

        return PolicyClones(
            discover=found,
            options_at=options_at,
            policies=tuple(
                {id(each.among): each.among for each in self.tables if each.among}.values()
            ),
            tables=tuple(each.policy for each in self.tables),
            state=open_store(str(own)) if state is None else state.open(provided).store,
        )
