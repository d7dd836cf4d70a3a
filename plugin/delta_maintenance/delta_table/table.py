"""A Delta table for scripts and notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.delta_table.methods import OperationMethods
from delta_maintenance.delta_table.parts import ExecutionParts
from delta_maintenance.operations.core.documents import Shown
from delta_maintenance.operations.core.facts import Facts, Grid, count_text, instant_text
from delta_maintenance.operations.health import TableHealth, measure
from delta_maintenance.operations.health.inspection import Description, describe
from delta_maintenance.redaction import redact
from delta_maintenance.table.read.history import CommitEntry
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table, open_table


class CommitHistory(Shown, list[CommitEntry]):
    """The retained commits, newest first."""

    def __init__(self, table: str, commits: Iterable[CommitEntry]) -> None:
        super().__init__(commits)
        self._table = table

    def heading(self) -> str:
        return self._table

    def summary(self) -> str:
        return f"{self._table}, {count_text(len(self), 'commit')}"

    def facts(self) -> Facts:
        rows = [
            (
                commit.version,
                instant_text(commit.timestamp),
                commit.operation,
                commit.commit_info.get("engineInfo"),
            )
            for commit in self
        ]
        return {"commits": Grid(columns=("version", "time", "operation", "by"), rows=rows)}


class DeltaTable(OperationMethods):
    """A Delta table at an address or with a name, for scripts and notebooks.

    `uri` is the root of the table: a local path, or an address such as `s3://lake/events`; or the
    name of the table in a catalog, such as `uc://main.sales.orders`. `storage_options` are those of
    its store and of its catalog, including credentials. A name is looked up at once; nothing else
    is read yet.

    Each operation is a method with the options of its verb on the command line as keyword
    arguments. It plans, applies the plan and returns the Result; with `dry_run=True` it changes
    nothing and returns the Plan. Durations may be texts such as `"7d"` or `"12 hours"`, and
    instants ISO 8601. Documents print as the command line prints them, and notebooks show them as
    tables.

    A Result also reports work that ended early or was refused by a conflict: see its `status`.
    Errors before the first change are raised, as a
    `delta_maintenance.errors.DeltaMaintenanceError`.

    `spark` is a `SparkSession` for work that is too much for one process. `ledger` is the address
    of a ledger that gets a row for each operation, accessed with the same storage options; if it
    cannot be written, a warning is logged.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        spark: Any = None,
        ledger: str | os.PathLike[str] | None = None,
    ) -> None:
        self._table = open_table(uri, storage_options)
        located = self._table.located
        assert located is not None
        self._catalog_name = None if located.name is None else str(located.name)
        self._storage_options = located.storage_options
        self._spark = spark
        # Refused before anything is done.
        self._ledger = None if ledger is None else str(Address.parse(os.fspath(ledger)))

    @property
    def uri(self) -> str:
        """The address of the table's root."""
        return self._table.uri

    @property
    def catalog_name(self) -> str | None:
        """The name in the catalog; None for a table that was opened by its address."""
        return self._catalog_name

    @property
    def table(self) -> Table:
        """The table as the operations of `delta_maintenance.operations` take it."""
        return self._table

    def snapshot(
        self, version: int | None = None, timestamp: datetime | str | int | None = None
    ) -> Snapshot:
        """Opens the latest version, or `version`, or the version that was current at `timestamp`.

        `timestamp` is a datetime with a zone, ISO 8601 text, or milliseconds since 1970-01-01 UTC.
        """
        return self._table.snapshot(version, timestamp)

    def version(self) -> int:
        """Returns the latest version."""
        return self._table.latest_version()

    def inspect(
        self, version: int | None = None, timestamp: datetime | str | int | None = None
    ) -> Description:
        """Describes a version: protocol, properties, totals of its files, and its log."""
        return describe(self.snapshot(version, timestamp))

    def files(
        self, version: int | None = None, timestamp: datetime | str | int | None = None
    ) -> pa.Table:
        """Returns the live files of a version, one row per logical file.

        The columns are `path` (as in the log), `dv` (the unique ID of the deletion vector or null),
        `size` in bytes, `partition_values`, `num_records`, `base_row_id` and
        `default_row_commit_version`.
        """
        return self.snapshot(version, timestamp).live_files()

    def history(self, limit: int | None = None) -> CommitHistory:
        """Returns the commits that the log retains, newest first; at most `limit`."""
        return CommitHistory(self.uri, self._table.history(limit))

    def health(self) -> TableHealth:
        """Measures what maintenance the table needs, from its log alone."""
        return measure(self.snapshot(), now=clock.now())

    def __repr__(self) -> str:
        return f"DeltaTable({redact(self._catalog_name or self.uri)!r})"

    def _execution_parts(self) -> ExecutionParts:
        return ExecutionParts(
            table=self._table,
            storage_options=self._storage_options,
            spark=self._spark,
            ledger=self._ledger,
            name=self._catalog_name or self.uri,
        )
