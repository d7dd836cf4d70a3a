"""The `publish` operation: publishes ratified commits and reports them to the catalog.

Implements "Publishing Commits". A catalog permits a limited number of commits that are not
reported as published, so writers wait if nobody publishes and reports. Any number of publishers and
writers may work at once: all of them put the same bytes. Killed at any point, the operation leaves
commits that the next run compares.
"""

from __future__ import annotations

from contextlib import suppress

from delta_maintenance.address import Access
from delta_maintenance.errors import CatalogError, DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.publish import (
    PublishedCommit,
    PublishOptions,
    PublishPlan,
    PublishResult,
)
from delta_maintenance.storage.core.base import Put
from delta_maintenance.table.read.managed_log import ManagedStore
from delta_maintenance.table.read.table import Table


def plan(
    table: Table, options: PublishOptions | None = None, context: RunContext | None = None
) -> PublishPlan:
    """Plans to publish and to report the commits that the catalog lists. One request; one more if
    it lists none.

    Raises `InvalidRequestError` for a table whose commits go through no catalog, and
    `CorruptTableError` if the catalog lists none and the log lacks its latest version.
    """
    context = context or RunContext()
    (options or PublishOptions()).validated()
    store = _managed_store(table)
    state = store.ask()
    if not state.commits:
        store.require_reported_commit(state.latest_version)
    reason = (
        f"{count_text(len(state.commits), 'commit')} not reported to the catalog as published"
        if state.commits
        else "all commits are reported to the catalog as published"
    )
    return PublishPlan(
        table=table.uri,
        version=state.latest_version,
        planned_at=context.started,
        table_id=state.table_id,
        commits=state.commits,
        reason=reason,
    )


def apply(table: Table, plan: PublishPlan, context: RunContext | None = None) -> PublishResult:
    """Publishes the planned commits in order, and reports the last one that was read back.

    Five requests for one commit, and three for each further one. The first failure ends it, after
    the commits before it are reported; it is raised. `CorruptTableError` names a commit that
    another file has the name of, and the commit before the listed ones if the log lacks it.
    """
    context = context or RunContext()
    if plan.is_noop:
        return PublishResult(
            table=plan.table, version=plan.version, status="nothing-to-do", notes=(plan.reason,)
        )
    store = _managed_store(table)
    if store.state.table_id != plan.table_id:
        raise CatalogError(
            "the table was dropped and created again",
            table=table.uri,
            remedy="plan again for the new table",
        )
    table.expect(Access.READ_WRITE, managed=True)
    store.require_reported_commit(plan.commits[0].version - 1)
    done: list[PublishedCommit] = []
    try:
        for commit in plan.commits:
            put = store.publish(commit)
            done.append(
                PublishedCommit(
                    version=commit.version,
                    size=commit.size,
                    status="published" if put is Put.DONE else "already-there",
                )
            )
            if context.progress is not None:
                context.progress("commits", len(done), len(plan.commits))
    except DeltaMaintenanceError:
        _report_before_failure(store, plan, done)
        raise
    store.report_published(plan.table_id, plan.commits[-1].version)
    published = [commit for commit in done if commit.status == "published"]
    return PublishResult(
        table=plan.table,
        version=plan.version,
        status="published" if published else "reported",
        commits=tuple(done),
        reported_version=done[-1].version,
        bytes_written=sum(commit.size for commit in published),
        notes=plan.notes,
    )


def _report_before_failure(
    store: ManagedStore, plan: PublishPlan, done: list[PublishedCommit]
) -> None:
    """Reports the commits before the one that failed, so that writers can go on meanwhile."""
    if done:
        # The failure of the commit says more; the next run reports again.
        with suppress(DeltaMaintenanceError):
            store.report_published(plan.table_id, done[-1].version)


def _managed_store(table: Table) -> ManagedStore:
    store = table.store
    if not isinstance(store, ManagedStore):
        raise InvalidRequestError(
            "the address or the name of the table leads to no catalog that lists its commits",
            table=table.uri,
            remedy="give the name of a catalog-managed table, such as uc://CATALOG.SCHEMA.TABLE",
        )
    return store
