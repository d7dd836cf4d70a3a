"""Reports where rows still exist, in files of the table and in those that nothing needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from delta_maintenance import clock
from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.documents import Plan, Result
from delta_maintenance.operations.core.facts import Facts, Grid, count_text, size_text
from delta_maintenance.operations.core.flags import Flag, option
from delta_maintenance.operations.core.operation import OperationRecord
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Instant, Record
from delta_maintenance.operations.holds.models import Holders

if TYPE_CHECKING:
    from delta_maintenance.operations.erasure_report.operation import apply, plan


Place = Literal[
    "live",
    "deletion-vector",
    "removed",
    "held",
    "change-data",
    "unreferenced",
    "old-version",
    "log",
]
"""Where a file with matching rows is. `live`: the latest version has the file, and it or an older
one returns the rows. `deletion-vector`: the latest version has the file, and a deletion vector
marks the rows. `removed`: a retained version or its tombstone needs the file. `held`: a kept
version, a reader or a clone needs it. `change-data`: a file of the change data feed.
`unreferenced`: no retained version knows the file, such as one that a failed writer left.
`old-version`: the store keeps the content of a deleted or replaced file. `log`: statistics or
partition values in a file of the log repeat values of rows that no file has, or that remain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReportOptions(Record):
    """The rows to look for."""

    where: Annotated[
        str,
        Flag(
            'the rows that should be gone, in SQL, such as "customer = 4711"',
            positional=True,
            metavar="CONDITION",
            example="id = 4711",
        ),
    ]
    clones: tuple[str, ...] = option(
        (),
        "shallow clones of this table, which are searched too",
        name="--clone",
        metavar="URI",
        group="common",
    )
    """In addition to those of `holders`. The files of this table that they need have no end."""
    holders: Holders = Holders()
    """What holds versions and files besides the retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReportPlan(Plan):
    """The files to read."""

    planned_at: Instant
    options: ErasureReportOptions
    files: int
    """The number of files in the folders of the table and of its clones that can contain rows,
    without old versions."""
    bytes: int

    @property
    def is_noop(self) -> bool:
        """Whether no file would be read."""
        return not self.files


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile(Record):
    """A file with matching rows."""

    place: Place
    clone: str | None = None
    """The address of the clone in whose folder the file is; None for the table itself."""
    path: str
    """Relative to the root of the table or clone, as the store names it."""
    version_id: str | None
    """The ID of an old version in the store."""
    rows: int
    """Matching rows in the file, whether or not they are deleted; in a file of the log, the file
    actions with such values."""
    size: int
    """The size in bytes."""
    sha256: str
    """Empty for a file of the log."""
    ends: Instant | None
    """When the file can be deleted by today's rules; None if no rule ends it."""
    ends_by: str
    """What deletes it then, or what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTotal(Record):
    """The files with matching rows in one place."""

    place: Place
    files: int
    rows: int
    last_end: Instant | None
    """When the last of these files can be deleted; None if a file has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReportResult(Result):
    """The files with matching rows, and whether the rows are erased."""

    status: Literal["erased", "remains", "uncertain"]
    """`erased`: no examined place has matching rows, and all places were examined. `uncertain`: no
    matching rows were found, and some places could not be examined."""
    examined_at: Instant
    where: str
    files_read: int
    bytes_read: int
    digest: str
    """The SHA-256 of the paths, sizes and checksums of all files that were read, in order."""
    places: tuple[PlaceTotal, ...] = ()
    found: tuple[FoundFile, ...] = ()
    """The first files with matching rows. The report of the command contains all files."""
    not_examined: tuple[str, ...] = ()
    """What could not be examined, with reasons."""


_STATUS = {
    "erased": "erased: no file that exists has such rows, and no statistics a value of them",
    "remains": "not erased: rows, or values of them in the log, remain",
    "uncertain": "no rows were found, but not everything could be examined",
}


def plan_facts(plan: ErasureReportPlan) -> Facts:
    """The files to read."""
    return {
        "rows": plan.options.where,
        "files to read": f"{plan.files:,} ({size_text(plan.bytes)})",
        "reason": plan.reason,
    }


def result_facts(result: ErasureReportResult) -> Facts:
    """Whether the rows are erased, and the files that still have them."""
    return {
        "rows": result.where,
        "status": _STATUS[result.status],
        "files read": f"{result.files_read:,} ({size_text(result.bytes_read)})",
        "digest": result.digest,
        "places": [
            f"{place.place}: {_rows_of(place)} in {count_text(place.files, 'file')}, "
            + (
                f"until {clock.text(place.last_end)}"
                if place.last_end is not None
                else "without an end"
            )
            for place in result.places
        ],
        "not examined": result.not_examined,
        "notes": result.notes,
        "found": Grid(
            ("place", "rows", "ends", "ended by", "path"),
            [
                (
                    place.place,
                    f"{place.rows:,}",
                    "never" if place.ends is None else f"{place.ends:%Y-%m-%d}",
                    place.ends_by,
                    place.path if place.clone is None else f"{place.clone}: {place.path}",
                )
                for place in result.found
            ],
        ),
    }


def _rows_of(total: PlaceTotal) -> str:
    return count_text(total.rows, "file action" if total.place == "log" else "row")


def conclusion(result: ErasureReportResult, outcome: Outcome) -> Conclusion:
    """Rows that remain are an error, so that a script can wait for the erasure."""
    if result.status == "erased":
        return Conclusion(outcome=outcome)
    if result.status == "uncertain":
        return Conclusion(
            outcome=outcome,
            problem=f"no rows were found, but {len(result.not_examined)} places could not be "
            f"examined, first {result.not_examined[0]}",
            remedy="examine them otherwise",
        )
    return Conclusion(
        outcome=outcome,
        problem="rows or values of them remain: "
        + ", ".join(f"{_rows_of(place)} ({place.place})" for place in result.places),
        remedy="see the report for the end of each file",
    )


RECORD = OperationRecord(
    name="erasure-report",
    title="Report where rows still exist",
    purpose="look",
    summary="where rows that should be gone still exist",
    description=(
        "Read every data file in the folders of the table and of its clones, also those of older "
        "versions and those that no version knows, and the contents of deleted files that the "
        "store keeps, and count the rows that match a condition, as each version that has a file "
        "reads it. Search the log for values of such rows. The report has the checksum of every "
        "data file, so that others can repeat it. Changes nothing."
    ),
    prints="Prints the report; the exit status is 1 unless all rows are erased.",
    options=ErasureReportOptions,
    plan=ErasureReportPlan,
    result=ErasureReportResult,
    code="delta_maintenance.operations.erasure_report.operation",
    outcomes={"erased": Outcome.DONE, "remains": Outcome.FAILED, "uncertain": Outcome.FAILED},
    subjects=("where",),
    report="every file that was read, with its checksum and its matching rows",
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
    wrote=lambda _: False,
)

__getattr__, __dir__ = lazy_names(__name__, operation="apply plan")
