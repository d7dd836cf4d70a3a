"""The resources of a step: the stores and Spark of its tables, and the folder that it shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.core.policy_values import StorageRule
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference
from delta_maintenance_dagster.spark_resource import DeltaSparkResource
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
            with self.opening(provided) as store:
                entry = store.save(assessment, result)
        except DeltaMaintenanceError as error:
            log.warning(f"{assessment.name}: the outcome cannot be stored: {error}")
            return None
        return acknowledgement_text(entry)

    @contextmanager
    def opening(self, provided: Any) -> Iterator[AssessmentStore]:
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
class StepResources:
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
    ) -> StepResources:
        """Returns the resources for tables among which clones are searched for."""
        connections = {table.policy.rules.storage.connection for table in tables}
        if any(table.among is not None for table in tables):
            # Of patterns.
            connections.add(None)
        other_stores = tuple(storage.of(connection) for connection in connections)
        return cls(storage=storage, spark=spark, tables=tuple(tables), others=other_stores)

    def of(self, table: DeltaTable) -> StepResources:
        """Returns the resources that the policy of a table names, or else these."""
        rules = table.policy.rules
        return replace(
            self,
            storage=self.storage.of(rules.storage.connection),
            spark=self.spark.of(rules.spark.connection),
        )

    @property
    def keys(self) -> set[str]:
        """The resource keys that Dagster must provide."""
        rules = [
            reader.storage for table in self.tables for reader in table.policy.rules.readers
        ] + [
            table.among.ledger.storage
            for table in self.tables
            if table.among is not None and table.among.ledger is not None
        ]
        stores = (self.storage.of(rule.connection) for rule in rules if rule is not None)
        return self.storage.keys.union(
            self.spark.keys, *(store.keys for store in (*self.others, *stores))
        )

    def clones(self, context: Context, name: str, state: SharedState | None) -> PolicyClones:
        """Returns the search for clones, which remembers between runs what it reads: in the folder
        of assessments if there is one, or else in Dagster's own folder on this host.
        """
        from delta_maintenance.policies.clones import PolicyClones
        from delta_maintenance.policies.discovery import Discovery, FailedSearches
        from delta_maintenance.policies.session import PolicySession, kept_tables
        from delta_maintenance.storage import open_store

        provided = context.resources
        origin = context.run.remote_job_origin
        location = "" if origin is None else quote(origin.location_name, safe="")
        # Each step is a process of its own, which would read the logs of all tables anew.
        folder = Path(context.instance.storage_directory(), "delta_maintenance", location, name)

        def options_at(rule: StorageRule, uri: str) -> Mapping[str, str]:
            storage = self.storage.of(rule.connection).resolve(provided)
            return storage.storage_options(rule, uri=uri)

        policies = {id(table.among): table.among for table in self.tables if table.among}
        sessions = [
            (PolicySession(policy=policy, storage_options=options_at), FailedSearches())
            for policy in policies.values()
        ]
        tables = tuple(table.policy for table in self.tables)

        def discover() -> Discovery:
            refreshed = [table.policy for table in self.tables if not table.kept]
            discoveries = [
                (session.policy, session.discover(failures)) for session, failures in sessions
            ]
            # What the last refresh could list is known from there.
            unlisted = (
                failed
                for policy, listing in discoveries
                for failed in listing.unlisted
                if not kept_tables(policy, Discovery((), (failed,)), refreshed)
            )
            listings = [listing for _, listing in discoveries]
            return Discovery(
                tables=(*tables, *chain.from_iterable(listing.tables for listing in listings)),
                unlisted=tuple(unlisted),
                listed=tuple(chain.from_iterable(listing.listed for listing in listings)),
                aliases=tuple(chain.from_iterable(listing.aliases for listing in listings)),
            )

        return PolicyClones(
            discover=discover,
            options_at=options_at,
            policies=tuple(policies.values()),
            tables=tables,
            state=open_store(str(folder)) if state is None else state.open(provided).store,
        )
