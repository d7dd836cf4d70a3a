"""What maintenance brought."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from delta_maintenance.operations.core.freed import freed_bytes
from delta_maintenance.policies.entries import BeforeAfter, PastRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """The sums over some runs; see the fields of `PastRun`."""

    runs: int
    failed_runs: int
    freed_bytes: int
    unfreed_bytes: int
    """Of deleted files whose storage is still paid for, or may be."""
    fewer_data_files: int
    fewer_files_to_open: int
    spared_bytes: int


def gains_of(runs: Iterable[PastRun], *, now: datetime) -> Gains:
    """What some runs brought, each for its table."""
    runs = tuple(runs)
    freed = sum(freed_bytes(run.freed, now) for run in runs)
    return Gains(
        runs=len(runs),
        failed_runs=sum(run.status == "failed" for run in runs),
        freed_bytes=freed,
        unfreed_bytes=sum(run.reclaimed_bytes for run in runs) - freed,
        fewer_data_files=_less(run.data_files for run in runs),
        fewer_files_to_open=_less(run.files_to_open for run in runs),
        spared_bytes=sum(run.spared_bytes for run in runs),
    )


def _less(numbers: Iterable[BeforeAfter | None]) -> int:
    return sum(each.less for each in numbers if each is not None)
