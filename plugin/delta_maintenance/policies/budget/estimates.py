"""What an operation is expected to cost, from what the last runs of it took.

A first estimate follows from the bytes and the requests that an assessment states, with constants
measured in `benchmarks`. It is corrected by the median of what the last runs on the table took over
their first estimates; without such runs, by that of runs of the same size on other tables. The band
is the range of these runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.operations.core.assessment import AssessedOperation
from delta_maintenance.policies.definition.budget import Unit
from delta_maintenance.policies.definition.ledger import Prices
from delta_maintenance.policies.measuring import Cost, ExpectedCost
from delta_maintenance.policies.models import OperationOutcome

REWRITING = frozenset({"optimize", "purge", "cluster", "expire"})
"""Operations that write data files anew."""
_USUAL, _REWRITE = (0.02, 1 / 60e6, 0.0007), (0.03, 1 / 85e6, 0.0008)
_CONSTANTS = {
    **dict.fromkeys(REWRITING, _REWRITE),
    "checkpoint": (0.022, 1 / 60e6, 0.0007),
    "compact-log": (0.002, 1 / 60e6, 0.0007),
    "vacuum": (0.035, 1 / 60e6, 0.00027),
}
"""Seconds of processor time: of a run, and for each byte and each request that an assessment
states. From `python -m benchmarks.scale.estimates`."""
_COPYING_SAVES = 0.8
"""The share of the processor time of a byte that copying it without decoding saves."""
_SECONDS_A_REQUEST = 0.01
"""For which nothing is computed, beyond the processor time."""
_RUNS = 5
"""The number of last runs from which a correction is taken."""
_UNKNOWN = (0.3, 3.0)
"""The band of a first estimate that nothing corrects."""
UNITS: tuple[Unit, ...] = ("cpu_seconds", "seconds", "bytes_rewritten", "requests", "money")


@dataclass(frozen=True, slots=True)
class Correction:
    """What the last runs of an operation took over their first estimates, by unit."""

    factors: Mapping[Unit, float]
    least: float
    most: float
    runs: int
    highest: Mapping[Unit, float] = field(default_factory=dict)
    """By unit, the highest factor of these runs; empty if there are fewer than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostHistory:
    """Corrections from a ledger; without runs, estimates are those of the constants."""

    of_table: Mapping[tuple[str, str], Correction] = field(default_factory=dict)
    """By the identity of the table's address, and operation."""
    of_size: Mapping[tuple[str, int], Correction] = field(default_factory=dict)
    """By operation, and the magnitude of the first estimate."""
    prices: Prices | None = None

    @classmethod
    def of(cls, rows: pa.Table, prices: Prices | None = None) -> CostHistory:
        """Returns the corrections from rows of the last runs.

        Columns: `table` (the identity of the address), `operation`, `started_at`,
        `expected_bytes`, `expected_copied` and `expected_requests` as assessed, and what each run
        took by unit.
        """
        read, copied, requests = (
            _numbers(pc.fill_null(rows[f"expected_{name}"], 0))
            for name in ("bytes", "copied", "requests")
        )
        names = rows["operation"].combine_chunks().dictionary_encode()
        estimate = _first_estimate(
            names.dictionary.to_pylist(), names.indices.to_numpy(), read, copied, requests, prices
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = {unit: _numbers(rows[unit]) / estimate[unit] for unit in UNITS}
        magnitude = np.log10(estimate["cpu_seconds"]).round().astype(np.int64)
        columns = {
            "table": rows["table"],
            "operation": rows["operation"],
            "started_at": rows["started_at"],
            "magnitude": pa.array(magnitude),
        }
        for unit, ratio in ratios.items():
            # Nothing is known of a unit that was not counted, or of which nothing was expected.
            columns[unit] = pa.array(ratio, mask=~np.isfinite(ratio))
        runs = pa.table(columns)
        return cls(
            of_table=_corrections(runs, ("table", "operation"), most=_RUNS),
            of_size=_corrections(runs, ("operation", "magnitude"), most=10 * _RUNS),
            prices=prices,
        )

    def expected(self, table: str, due: AssessedOperation) -> ExpectedCost:
        """Returns what an operation on the table with an identity is expected to take."""
        estimate = _first_estimate(
            [due.operation],
            0,
            float(due.bytes_to_read),
            float(due.bytes_to_copy),
            float(due.requests),
            self.prices,
        )
        magnitude = int(np.log10(estimate["cpu_seconds"]).round())
        known = self.of_table.get((table, due.operation)) or self.of_size.get(
            (due.operation, magnitude)
        )
        factors, highest = ({}, {}) if known is None else (known.factors, known.highest)
        least, most = _UNKNOWN if known is None else (known.least, known.most)
        return ExpectedCost(
            bytes_to_read=due.bytes_to_read,
            bytes_to_copy=due.bytes_to_copy,
            requests=due.requests,
            costs={unit: float(estimate[unit]) * factors.get(unit, 1.0) for unit in UNITS},
            least=least,
            most=most,
            highest={unit: float(estimate[unit]) * factor for unit, factor in highest.items()},
            runs=0 if known is None else known.runs,
        )


def taken_by(outcome: OperationOutcome, prices: Prices | None) -> dict[Unit, float]:
    """Returns what an operation took, by unit; units that nobody counted are left out."""
    cost, is_local = outcome.cost or Cost(), outcome.engine == "local"
    columns = {name: value or 0 for name, value in cost.to_json().items()}
    taken: dict[Unit, float] = {"seconds": outcome.seconds}
    if cost.cpu_seconds is not None and (is_local or cost.spark_task_seconds is not None):
        taken["cpu_seconds"] = cost.cpu_seconds + (cost.spark_task_seconds or 0)
        by_column = {} if prices is None else prices.by_column()
        taken["money"] = sum(price * columns[name] for name, price in by_column.items())
    # What tasks of Spark send is counted nowhere.
    if is_local and cost.requests_read is not None:
        taken["requests"] = sum(columns[name] for name in columns if name.startswith("requests_"))
    if is_local and cost.bytes_written is not None:
        taken["bytes_rewritten"] = cost.bytes_written if outcome.operation in REWRITING else 0
    return taken


def _first_estimate(
    operations: Sequence[str], at: Any, read: Any, copied: Any, requests: Any, prices: Prices | None
) -> dict[Unit, Any]:
    """Returns the cost by unit, of one operation or of many in columns; `at` are their places among
    the names of operations.
    """
    constants = np.array([_CONSTANTS.get(name, _USUAL) for name in operations]).reshape(-1, 3)
    rewrites = np.array([name in REWRITING for name in operations], np.bool_)
    a_run, a_byte, a_request = constants[at].T
    decoded = read - _COPYING_SAVES * np.minimum(copied, read)
    cpu_seconds = a_run + a_byte * decoded + a_request * requests
    money = 0.0 * read
    if prices is not None:
        money = cpu_seconds * prices.cpu_hour / 3600 + requests * prices.requests.read / 1000
    return {
        "cpu_seconds": cpu_seconds,
        "seconds": cpu_seconds + _SECONDS_A_REQUEST * requests,
        "bytes_rewritten": read * rewrites[at],
        "requests": requests,
        "money": money,
    }


def newest_runs(rows: pa.Table) -> pa.Table:
    """Returns the rows that matter of some rows, as `CostHistory.of` takes them."""
    order, _, place = _by_age(rows, ("table", "operation"))
    return rows.take(pa.array(order[place < _RUNS]))


def _by_age(rows: pa.Table, keys: tuple[str, str]) -> tuple[Any, Any, Any]:
    """Returns the order of the rows by group, the newest of each first, and for each row in this
    order the number of its group and its place there.
    """
    codes = [
        rows[key].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        for key in keys
    ]
    age = -rows["started_at"].cast(pa.int64()).to_numpy()
    order = np.lexsort((age, *codes))
    is_first = np.any([np.diff(code[order], prepend=-1) != 0 for code in codes], axis=0)
    group = np.cumsum(is_first) - 1
    return order, group, np.arange(len(order)) - np.flatnonzero(is_first)[group]


def _corrections(runs: pa.Table, keys: tuple[str, str], *, most: int) -> dict[Any, Correction]:
    """Returns the medians of the newest runs of each group."""
    order, group, place = _by_age(runs, keys)
    is_new = place < most
    first = runs.select(keys).take(pa.array(order[place == 0])).to_pydict()
    known: list[dict[Unit, float]] = [{} for _ in first[keys[0]]]
    highest: list[dict[Unit, float]] = [{} for _ in known]
    bands: Any = None
    for unit in UNITS:
        values = np.full((len(known), most), np.nan)
        values[group[is_new], place[is_new]] = _numbers(runs[unit])[order][is_new]
        values.sort(axis=1)  # What is not known comes last.
        number = np.isfinite(values).sum(axis=1)
        rows = np.flatnonzero(number)
        last = number[rows] - 1
        medians = (values[rows, last // 2] + values[rows, (last + 1) // 2]) / 2
        for row, median in zip(rows.tolist(), medians.tolist(), strict=True):
            known[row][unit] = median
        several = np.flatnonzero(number > 1)
        greatest = values[several, number[several] - 1]
        for row, value in zip(several.tolist(), greatest.tolist(), strict=True):
            highest[row][unit] = value
        if unit == "cpu_seconds":
            bands = zip(
                values[:, 0], values[np.arange(len(known)), number - 1], number, strict=True
            )
    names = zip(first[keys[0]], first[keys[1]], strict=True)
    return {
        name: Correction(
            factors, *_band(least, most_of, factors.get("cpu_seconds"), int(runs_of)), dear
        )
        for name, factors, dear, (least, most_of, runs_of) in zip(
            names, known, highest, bands, strict=True
        )
    }


def _band(least: float, most: float, middle: float | None, runs: int) -> tuple[float, float, int]:
    if runs < 2 or not middle:
        return (*_UNKNOWN, runs)
    return float(least / middle), float(most / middle), runs


def _numbers(column: pa.ChunkedArray) -> Any:
    return column.cast(pa.float64(), safe=False).to_numpy()
