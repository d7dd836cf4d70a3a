"""What plans and results of rewrites have in common."""

from __future__ import annotations

from dataclasses import dataclass

from delta_maintenance.operations.core.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount(Record):
    """How many files there are for one reason."""

    reason: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan(Record):
    """What is to be done in one partition."""

    values: dict[str, str | None]
    """Its partition values as in the log; empty for a table without partitions."""
    files: int
    """To be rewritten."""
    files_after: int
    """That these become, as far as sizes tell."""
    bytes: int
    deleted_rows: int
    reasons: tuple[ReasonCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinReport(Record):
    """What became of one bin."""

    number: int
    partition: dict[str, str | None]
    reasons: tuple[str, ...]
    """Of any of its sources."""
    num_sources: int
    sources: tuple[str, ...] = ()
    """Their paths as in the log, where there are not too many of them in the whole result."""
    outputs: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    """Live rows that were moved."""
    row_sums: str | None = None
    """The digest of these rows, as they were read and as they were read back from the new files."""
    fate: str
    """`committed`, `remapped`, `re-spun`, `dropped`, `hot`, `refused`, `failed`, `not-proved`,
    `void`, `unknown` or `not-started`; what each of them means is in the documentation."""
    adopted: bool = False
    """Whether an earlier run had rewritten it."""
    version: int | None = None
    """Of the commit that holds it."""
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFile(Record):
    """A file that cannot be rewritten exactly."""

    path: str
    problem: str
