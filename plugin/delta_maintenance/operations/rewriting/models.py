"""Options, plans and results of all operations that rewrite data files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.flags import option, policy_option
from delta_maintenance.operations.core.record import Count, Instant, Positive, Record

Reader = Literal["spark", "sql-endpoint", "direct-lake"]
"""A reader for which the form of new files can be chosen."""
DELETED_ROWS = "deleted-rows"
"""The reason for rewriting files with too many deleted rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions(Record):
    """Options that select the files to rewrite and control the work."""

    where: str | None = policy_option(
        None,
        "a condition on partition columns, such as "
        "`day >= '2026-01-01' AND country IN ('DE', 'FR')`; other partitions are left alone",
        metavar="SQL",
        group="common",
    )
    quiet_for: timedelta | None = policy_option(
        None, "leave partitions alone that were written to within this time, such as '1 hour'"
    )
    max_bytes: Count | None = policy_option(
        None, "the maximum bytes of data files that one run reads", group="common"
    )
    max_files: Count | None = option(None, "the maximum number of data files to rewrite")
    as_of: Instant | None = None
    """Files that were written after this instant are left alone. Used to apply a plan that was
    approved some time ago.
    """
    max_duration: timedelta | None = policy_option(
        None, "start no further work after this time, such as '30 minutes'"
    )
    """Started bins are completed."""
    proof: Literal["rows", "counts"] = option(
        "rows",
        "the comparison before a commit: `rows`, the default, compares a digest of every value of "
        "every row; `counts` compares only numbers of rows",
        group="safety",
    )
    workers: Positive | None = option(
        None, "bins that are rewritten at the same time; by default one for each processor"
    )
    """At most 8 in this process and one for each core on Spark."""
    engine: flags.Engine = "auto"
    auto_spark_bytes: int = 256 << 30
    """With `engine="auto"`, Spark is used from this number of bytes of data files."""
    other_writers: flags.OtherWritersField = None
    quiet: flags.QuietField = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFileOptions(RewriteOptions):
    """Options of the operations that choose the form of new files."""

    reader: Reader | None = policy_option(
        None,
        "the main reader of the table, for which the size and the row groups of new files are "
        "chosen, unless they are given: `spark`, the SQL analytics endpoint of Fabric, or Direct "
        "Lake of Power BI",
    )
    target_bytes: Positive | None = policy_option(
        None,
        "the size of new files in bytes; by default the table's delta.targetFileSize, "
        "else 128 MiB to 1 GiB by the size of the table",
    )
    row_group_rows: Positive | None = policy_option(
        None,
        "the rows of a row group in new files; fewer if these would take more than "
        "256 MiB of memory; by default 1,048,576, or as many as take 32 MiB",
    )
    bloom: tuple[str, ...] = policy_option(
        (),
        "columns for which new files get bloom filters, so that readers of one value skip row "
        "groups; those of the old files keep them anyway",
        metavar="COLUMN",
    )
    """Dots separate the names of nested columns; names with dots are in backticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount(Record):
    """The number of files for one reason."""

    reason: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan(Record):
    """The planned work in one partition."""

    values: dict[str, str | None]
    """Partition values as in the log; empty for a table without partitions."""
    files: int
    """Files to rewrite."""
    files_after: int
    """The estimated number of new files."""
    bytes: int
    """Bytes of the files to rewrite."""
    deleted_rows: int
    """Rows of these files that deletion vectors mark as deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan(Plan):
    """The files that `apply` would rewrite, in numbers, and why.

    `apply` chooses files again on the version that it finds, by the same rules.
    """

    planned_at: datetime
    is_noop: bool
    """Whether `apply` would commit nothing."""
    reason: str
    """One sentence that describes the work, or explains why there is none."""
    options: RewriteOptions
    num_files: int = 0
    """Live files of the table."""
    files: int = 0
    """Files to rewrite."""
    files_after: int = 0
    """The estimated number of new files."""
    bytes: int = 0
    """Bytes to read."""
    bytes_to_copy: int = 0
    """Of these, an estimate of the bytes whose row groups are copied without being decoded."""
    bytes_after: int = 0
    """The estimated bytes to write. The old files are stored as well until a vacuum."""
    deleted_rows: int = 0
    """The number of deleted rows that the new files no longer contain."""
    bins: int = 0
    """Units of work: the files of a bin are merged, proved and committed together."""
    commits: int = 0
    """The estimated number of commits."""
    target_bytes: int = 0
    """The size of new files."""
    row_group_rows: int = 0
    """The maximum number of rows in a row group of new files; those with long rows have fewer."""
    engine: Literal["local", "spark"] = "local"
    workers: int | None = 1
    """Bins that are rewritten at the same time; None for one on each core of the Spark cluster."""
    memory_bytes: int = 0
    """The maximum memory in bytes, of this process or of each Spark task."""
    reasons: tuple[ReasonCount, ...] = ()
    """Files to rewrite by reason; a file can have several."""
    left_alone: tuple[ReasonCount, ...] = ()
    """Files that have a reason but are not rewritten, by obstacle."""
    partitions: tuple[PartitionPlan, ...] = ()
    """At most 100 partitions, those with the most files to rewrite first."""
    num_partitions: int = 0
    """The number of all partitions with files to rewrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinReport(Record):
    """The outcome of the work on one bin."""

    number: int
    partition: dict[str, str | None]
    reasons: tuple[str, ...]
    """The reasons of its sources."""
    num_sources: int
    sources: tuple[str, ...] = ()
    """Paths as in the log; empty in a result with more than 10,000 sources."""
    outputs: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    """Live rows that were moved."""
    row_sums: str | None = None
    """The digest of these rows, equal for the sources and for the new files as read back from
    storage. None if row groups were copied.
    """
    copied: bool = False
    """Whether row groups were copied without being decoded; their bytes were compared."""
    is_clustered: bool | None = None
    """Whether the new files are better clustered than the sources. None if rows keep their
    order."""
    depth_before: float | None = None
    """The average number of sources whose bounds contain the clustering columns of a row."""
    depth_after: float | None = None
    """The same number for the new files, according to their statistics."""
    unbounded: str | None = None
    """A clustering column of which a new file cannot have bounds, so that it is not clustered."""
    fate: str
    """`committed`, `remapped`, `written-again`, `superseded`, `dropped`, `contended`, `refused`,
    `failed`, `not-proved`, `table-changed`, `unknown` or `not-started`. The documentation of
    `optimize` explains each.
    """
    version: int | None = None
    """The version that contains the bin."""
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFile(Record):
    """A file that was left out of a rewrite."""

    path: str
    problem: str
    damaged: bool = False
    """Whether the file is missing or damaged. If not, it contains values that this release cannot
    write again exactly.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult(Result):
    """The result of a run."""

    status: Literal["rewritten", "partly", "conflict", "failed", "nothing-to-do"]
    """`partly`: the run ended early; another run continues. `conflict`: other writers changed the
    sources of bins, and no bin is committed. `failed`: at least one bin failed, see `problem`; all
    others are committed.
    """
    engine: Literal["local", "spark"] = "local"
    files_before: int = 0
    """The number of files removed from the table."""
    files_after: int = 0
    """The number of files added in their place."""
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    """Live rows that were moved, each proved equal before and after."""
    num_bins: int = 0
    num_commits: int = 0
    fates: dict[str, int] | None = None
    """The number of bins for each fate."""
    bins: tuple[BinReport, ...] = ()
    """One report per bin, at most 1,000; bins that were not committed come first."""
    refused: tuple[RefusedFile, ...] = ()
    """Files that were left out, at most 100."""
    num_refused: int = 0
    problem: str | None = None
