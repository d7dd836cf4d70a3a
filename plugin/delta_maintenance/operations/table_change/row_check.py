"""Checks rows in this process: counts the rows for which a constraint is not true.

Only for expressions that are evaluated here as by Spark (`protocol.schema.spark_agreement`). The
engine for Spark uses the same walk through the files, and the same summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.add_constraint import SHOWN_FILES, CheckedRows, ViolatingFile
from delta_maintenance.operations.rewriting.engine import default_workers
from delta_maintenance.protocol.actions.file_columns import COMMIT_VERSION
from delta_maintenance.protocol.schema.evaluation import RowCondition
from delta_maintenance.protocol.schema.spark_agreement import obstacle_without_spark
from delta_maintenance.protocol.schema.types import StructType, parse_schema
from delta_maintenance.storage.core.streams import StreamingPool
from delta_maintenance.table.data.row_reader import FILES, RowLayout, RowReader
from delta_maintenance.table.progress import Progress, ignore_progress
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.snapshot import Snapshot

_FILES_AT_ONCE = 1_000
_COUNTS = pa.schema({"file": pa.int32(), "rows": pa.int64(), "violations": pa.int64()})


class LocalConstraintCheck:
    """A `ConstraintCheck` in threads of this process. Each holds a batch of rows of one file."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress or ignore_progress

    def __call__(
        self, snapshot: Snapshot, expression: str, *, added_after: int | None
    ) -> CheckedRows:
        """See `ConstraintCheck`. `InvalidRequestError` also if only Spark evaluates the expression,
        as after a change of a column's type.
        """
        schema = parse_schema(snapshot.metadata.schema_string or "")
        require_evaluable(spark_only(expression, schema))
        condition = RowCondition(expression, schema)
        # Whether a timestamp is null does not depend on a time zone.
        layout = RowLayout.of(snapshot, condition.columns, zone=UTC)
        names, store = layout.schema.names, snapshot.log.store

        def count(files: pa.Table, number: int) -> dict[str, int]:
            rows = violations = 0
            for batch in RowReader(store, layout).read(files, number):
                satisfied = condition.matching(dict(zip(names, batch.columns, strict=True)))
                rows += batch.count
                violations += batch.count - satisfied.true_count
            return {"file": number, "rows": rows, "violations": violations}

        with StreamingPool(default_workers()) as pool:

            def check(files: pa.Table) -> CheckedRows:
                counts = [*pool.map(lambda number: count(files, number), range(files.num_rows))]
                return summarize(files, pa.Table.from_pylist(counts, _COUNTS))

            return check_files(
                snapshot,
                check,
                added_after=added_after,
                files_at_once=_FILES_AT_ONCE,
                progress=self._progress,
            )


def spark_only(expression: str, schema: StructType) -> str | None:
    """Returns why only Spark can evaluate the expression, as a clause; None if this process can."""
    obstacle = obstacle_without_spark(expression, schema)
    if obstacle is None:
        return None
    return f"only Spark can evaluate {expression}, because {obstacle}"


def require_evaluable(only_spark: str | None) -> None:
    """Raises `InvalidRequestError` if this process cannot evaluate the expression."""
    if only_spark is not None:
        remedy = "install delta-maintenance[spark], and use --engine spark"
        raise InvalidRequestError(only_spark, remedy=remedy)


def check_files(
    snapshot: Snapshot,
    check: Callable[[pa.Table], CheckedRows],
    *,
    added_after: int | None,
    files_at_once: int,
    progress: Progress,
) -> CheckedRows:
    """Checks the live files of a snapshot in groups, which have the schema `FILES`.

    With `added_after`, only files that were added after that version, or in an unknown version.
    """
    total = None if added_after is not None else snapshot.counts.num_files
    while True:
        try:
            checked_rows = CheckedRows()
            for files in _groups(snapshot, added_after, files_at_once):
                checked_rows += check(files.combine_chunks())
                progress("files", checked_rows.files, total)
            return checked_rows
        except UnusableCheckpointError as error:
            snapshot = snapshot.avoiding(error)


def summarize(files: pa.Table, counts: pa.Table) -> CheckedRows:
    """Sums up the counts of files: number of the file, rows and violations."""
    counts = counts.rename_columns(_COUNTS.names)
    violating = counts.filter(pc.greater(counts["violations"], 0))
    worst = violating.sort_by([("violations", "descending"), ("file", "ascending")])
    return CheckedRows(
        files=files.num_rows,
        rows=pc.sum(counts["rows"]).as_py() or 0,
        violations=pc.sum(violating["violations"]).as_py() or 0,
        violating_files=violating.num_rows,
        worst_files=tuple(
            ViolatingFile(
                path=files["path"][row["file"]].as_py(),
                rows=row["rows"],
                violations=row["violations"],
            )
            for row in worst.slice(0, SHOWN_FILES).to_pylist()
        ),
    )


def _groups(snapshot: Snapshot, added_after: int | None, files_at_once: int) -> Iterator[pa.Table]:
    waiting = FILES.empty_table()
    for batch in snapshot.log.scan(fields={"add": FILES.names}):
        adds = batch.adds
        # The commits that added the files of a checkpoint are unknown.
        if added_after is not None and COMMIT_VERSION in adds.column_names:
            adds = adds.filter(pc.greater(adds[COMMIT_VERSION], added_after))
        waiting = pa.concat_tables([waiting, _files(adds)])
        while waiting.num_rows >= files_at_once:
            yield waiting.slice(0, files_at_once)
            waiting = waiting.slice(files_at_once)
    if waiting.num_rows:
        yield waiting


def _files(adds: pa.Table) -> pa.Table:
    columns = [
        adds[item.name]
        if item.name in adds.column_names
        else pa.chunked_array([pa.nulls(adds.num_rows, item.type)])
        for item in FILES
    ]
    return pa.table(columns, schema=FILES)
