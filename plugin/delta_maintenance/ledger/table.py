"""The table of the ledger: created, appended to beside other writers, and read.

Every append is one commit. The ID of a run is the operation ID of its commit, by which a second
delivery of the same rows finds the first one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance import __version__, clock
from delta_maintenance.errors import (
    CommitConflictError,
    InvalidRequestError,
    NotADeltaTableError,
    RefusedError,
)
from delta_maintenance.ledger.rows import COLUMNS, PARTITION, SCHEMA, SCHEMA_STRING
from delta_maintenance.policies.definition.ledger import TABLE_NAME
from delta_maintenance.protocol.actions.model import Metadata, Protocol
from delta_maintenance.protocol.commit.build import render_commit
from delta_maintenance.protocol.commit.staged import StagedActions
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.data_files.names import FileNaming, log_path
from delta_maintenance.protocol.delta_log.file_names import commit_name
from delta_maintenance.protocol.statistics.columns import StatisticsColumns
from delta_maintenance.storage import Store
from delta_maintenance.table.commit.idempotency import commit_after
from delta_maintenance.table.commit.outcome import Conflicted, Landed
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.data.data_file_writer import DataFileSpec, DataFileWriter
from delta_maintenance.table.data.row_reader import FILES, RowLayout, RowReader
from delta_maintenance.table.read.log_file import LOG_DIRECTORY
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_CODEC = "zstd"
_APPEND, _CREATE, _CHANGE = "WRITE", "CREATE TABLE", "ADD COLUMNS"
_PARAMETERS = {"mode": "Append", "partitionBy": json.dumps([PARTITION])}
_MOST, _MOST_SECONDS = 1 << 60, float(1 << 40)
_READ_FIELDS = ("path", "partitionValues", "size", "deletionVector")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Rows of one run, and the version of the ledger since which they may be in it."""

    run_id: str
    rows: pa.Table
    """Columns of the ledger, in any number."""
    since_version: int | None = -1
    """A version of the ledger without the rows: -1 if it did not exist, None if no delivery was
    begun.
    """


class LedgerTable:
    """A ledger in a store. Many processes can append to it at the same time."""

    def __init__(
        self, store: Store, *, now: clock.Clock = clock.now, new_id: clock.NewId = clock.new_id
    ) -> None:
        self._store = store
        self._table = Table(store)
        self._now = now
        self._new_id = new_id

    def version(self) -> int:
        """Returns the newest version; -1 if the ledger does not exist yet."""
        try:
            return self._table.latest_version()
        except NotADeltaTableError:
            return -1

    def append(self, delivery: Delivery) -> bool:
        """Appends the rows of a run, unless an earlier delivery has; returns whether it did.

        Creates the table if it does not exist, and adds the columns of this release that it lacks.
        `InvalidRequestError` if the table is no ledger; otherwise the errors of a transaction.
        """
        snapshot = self._with_columns(self._open())
        if delivery.since_version is not None and self._has(snapshot, delivery):
            return False
        layout = DataFileLayout.of(snapshot.protocol, snapshot.metadata)
        adds = self._written(delivery.rows, snapshot, layout)
        transaction = self._begin(snapshot, _APPEND, operation_id=delivery.run_id)
        transaction.stage_adds(adds)
        outcome = transaction.commit()
        if isinstance(outcome, Conflicted):
            raise outcome.as_error(self._store.root)
        return isinstance(outcome, Landed)

    def read(self, columns: Sequence[str], *, since_month: str | None = None) -> pa.Table:
        """Reads columns of the rows of all months, or of those from a month on.

        `NotADeltaTableError` if there is no ledger.
        """
        return pa.concat_tables([*self.batches(columns, since_month=since_month)])

    def batches(
        self, columns: Sequence[str], *, since_month: str | None = None
    ) -> Iterator[pa.Table]:
        """Like `read`, in parts; the first one is empty.

        Columns that the ledger lacks are null.
        """
        snapshot = self._table.snapshot()
        layout = RowLayout.of(snapshot, columns, zone=None)
        _require_ledger(snapshot)
        files = self._files(snapshot, since_month)
        reader = RowReader(self._store, layout)
        yield _as_asked(layout.schema.empty_table(), columns)
        for number in range(files.num_rows):
            for rows in reader.read(files, number):
                yield _as_asked(pa.Table.from_arrays(rows.columns, schema=layout.schema), columns)

    def _open(self) -> Snapshot:
        try:
            return self._table.snapshot()
        except NotADeltaTableError:
            self._create()
            return self._table.snapshot()

    def _create(self) -> None:
        """Creates version 0. If another process was first, its table is used.

        `InvalidRequestError` if the folder has other contents, which a vacuum would delete.
        """
        other_contents = self._other_contents()
        # Another process creates the table before it writes files.
        if other_contents is not None and self.version() < 0:
            raise InvalidRequestError(
                "the folder for the ledger is not empty",
                table=self._store.root,
                file=other_contents,
                remedy="give the address of a new folder",
            )
        now_ms = clock.epoch_millis(self._now())
        actions = StagedActions(
            protocol=Protocol(min_reader_version=1, min_writer_version=2),
            metadata=Metadata(
                id=self._new_id(),
                name=TABLE_NAME,
                description="What maintenance ran, what it brought and what it cost.",
                schema_string=SCHEMA_STRING,
                partition_columns=(PARTITION,),
                created_time=now_ms,
            ),
        )
        info = {
            "timestamp": now_ms,
            "operation": _CREATE,
            "operationParameters": {"partitionBy": json.dumps([PARTITION])},
            "engineInfo": f"delta-maintenance/{__version__}",
            "txnId": self._new_id(),
        }
        self._store.put_if_absent(f"{LOG_DIRECTORY}/{commit_name(0)}", render_commit(info, actions))

    def _other_contents(self) -> str | None:
        """Returns the first file or folder that a vacuum does not ignore."""
        level = self._store.list_level()
        paths: list[str] = level["path"].to_pylist() if level is not None else []
        return min((path for path in paths if path and path[0] not in "._"), default=None)

    def _with_columns(self, snapshot: Snapshot) -> Snapshot:
        """Adds the columns of this release that the table lacks."""
        missing = _require_ledger(snapshot)
        if not missing:
            return snapshot
        schema = json.loads(snapshot.metadata.schema_string or "")
        schema["fields"] += missing
        transaction = self._begin(snapshot, _CHANGE)
        text = json.dumps(schema, separators=(",", ":"))
        transaction.stage_metadata(replace(snapshot.metadata, schema_string=text))
        transaction.commit()
        # Another process may have added them first.
        later = self._table.snapshot()
        if _require_ledger(later):
            raise CommitConflictError(
                "new columns were not added to the ledger", table=snapshot.table, remedy="run again"
            )
        return later

    def _has(self, snapshot: Snapshot, delivery: Delivery) -> bool:
        since = -1 if delivery.since_version is None else delivery.since_version
        try:
            return commit_after(snapshot, [delivery.run_id], since) is not None
        except RefusedError:
            # Commits since then were cleaned up, but rows stay.
            months = pc.min(delivery.rows[PARTITION]).as_py()
            run_ids = self.read(["run_id"], since_month=months)["run_id"]
            return bool(pc.any(pc.equal(run_ids, delivery.run_id)).as_py())

    def _begin(
        self, snapshot: Snapshot, operation: str, *, operation_id: str | None = None
    ) -> Transaction:
        # Only this class writes to a ledger, and it puts conditionally.
        writer = Writer(other_writers="conditional_put", now=self._now, new_id=self._new_id)
        return Transaction(
            snapshot,
            operation,
            parameters=_PARAMETERS if operation == _APPEND else {},
            operation_id=operation_id,
            writer=writer,
        )

    def _written(
        self, rows: pa.Table, snapshot: Snapshot, layout: DataFileLayout
    ) -> list[dict[str, Any]]:
        """Writes a file for each month, and returns the adds."""
        statistics = StatisticsColumns.of(
            snapshot.protocol, snapshot.metadata, snapshot.domain_metadata
        )
        spec = DataFileSpec(layout=layout, statistics=statistics, codec=_CODEC)
        naming = FileNaming.of(snapshot.metadata.configuration, [PARTITION], layout.mode)
        adds = []
        for month in pc.unique(rows[PARTITION]).to_pylist():
            values = {PARTITION: month}
            name = naming.name(values, 0, self._new_id(), _CODEC)
            of_month = rows.filter(pc.equal(rows[PARTITION], month))
            with DataFileWriter(self._store, name, spec) as writer:
                for batch in _arrange_columns(of_month, layout.schema).to_batches():
                    writer.write(batch)
            file = writer.result()
            adds.append(
                {
                    "path": log_path(file.name),
                    "partitionValues": values,
                    "size": file.size,
                    "modificationTime": file.modified_ms,
                    "dataChange": True,
                    "stats": file.stats,
                }
            )
        return adds

    def _files(self, snapshot: Snapshot, since_month: str | None) -> pa.Table:
        batches = [
            batch.adds.select(FILES.names).cast(FILES)
            for batch in snapshot.log.scan(fields={"add": _READ_FIELDS})
        ]
        files = pa.concat_tables([FILES.empty_table(), *batches])
        if since_month is None:
            return files
        months = pc.map_lookup(files["partitionValues"], PARTITION, "first")
        return files.filter(pc.greater_equal(months, since_month))


def _arrange_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of a data file; null where they have none."""
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _as_asked(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    return pa.table(
        {
            name: _possible(rows[name])
            if name in rows.column_names
            else pa.nulls(rows.num_rows, SCHEMA.field(name).type)
            for name in columns
        }
    )


def _possible(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Null for numbers that no operation has: another writer may have added rows, and no sum,
    chart or JSON document takes NaN.
    """
    if pa.types.is_integer(values.type):
        maximum: float = _MOST
    elif pa.types.is_floating(values.type):
        maximum = _MOST_SECONDS
    else:
        return values
    possible = pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, maximum))
    return pc.if_else(possible, values, None)


def _require_ledger(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Returns the columns of this release that the table lacks.

    `InvalidRequestError` if the table is no ledger, or if a column of it was altered.
    """
    fields = json.loads(snapshot.metadata.schema_string or '{"fields": []}')["fields"]
    types = {field["name"]: field["type"] for field in fields}
    columns = [column.to_json() for column in COLUMNS]
    altered = next(
        (each for each in columns if types.get(each["name"], each["type"]) != each["type"]), None
    )
    remedy = "give another address for the ledger, or restore the table"
    if altered is not None:
        raise InvalidRequestError(
            f"the column {altered['name']} of the ledger has another type",
            table=snapshot.table,
            version=snapshot.version,
            remedy=remedy,
        )
    if "row_id" not in types or snapshot.metadata.partition_columns != (PARTITION,):
        raise InvalidRequestError(
            "the table is no ledger of delta-maintenance",
            table=snapshot.table,
            version=snapshot.version,
            remedy=remedy,
        )
    return [each for each in columns if each["name"] not in types]
