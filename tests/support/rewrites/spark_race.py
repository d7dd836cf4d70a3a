"""A race with Delta Spark: its threads append, delete, update and merge beside an optimizer, on
HDFS.

On a local disk, Delta Spark replaces a commit that another process creates at the same instant. On
HDFS it does not.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from tests.support.oracle.delta_spark import DeltaSpark, decode
from tests.support.rewrites.race_ledgers import (
    APPENDER_IDS,
    BLOCK,
    MERGED_IDS,
    Act,
    Ledger,
    acts,
    compared,
    expected,
    partition_of,
    text_of,
)
from tests.support.rewrites.race_writers import COPYING, MARKING, MERGING, chosen

_COPIES = (
    "spark.databricks.delta.delete.deletionVectors.persistent",
    "spark.databricks.delta.merge.deletionVectors.persistent",
)

_PATIENCE = 240
"""The most seconds by which a race is longer."""

Optimizer = Callable[[Ledger], None]
"""Rewrites files once, and notes what became of it."""


class SparkRace:
    """The writers of one race, all of them threads of this process."""

    def __init__(
        self, delta_spark: DeltaSpark, table: str, ledgers: Path, *, appenders: int
    ) -> None:
        self._spark = delta_spark
        self._table = f"delta.`{table}`"
        self._ledgers = ledgers
        self._appenders = appenders
        self._until = 0.0
        self._suffices: Callable[[Act], object] = _rewrote
        self._opened: list[Ledger] = []
        self._turn: AbstractContextManager[Any] = nullcontext()
        # With settings of its own: this session deletes and merges by copying files.
        self._copying = delta_spark.jvm_session().newSession()
        for name in _COPIES:
            self._copying.conf().set(name, "false")

    def create(self, layout: str = "PARTITIONED BY (p)") -> None:
        """Creates the table, partitioned or clustered.

        Without partitions, an append lets each change fail that is under way, so that the writers
        take turns then.
        """
        if "PARTITIONED" not in layout:
            self._turn = threading.Lock()
        self._spark.sql(
            f"CREATE TABLE {self._table} (id LONG, v LONG, text STRING, p STRING) USING delta "
            f"{layout} TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
            "'delta.enableRowTracking' = 'true')"
        )

    def run(
        self,
        seconds: float,
        optimizer: Optimizer,
        *,
        suffices: Callable[[Act], object] | None = None,
    ) -> dict[str, Any]:
        """Lets everybody work for so long. Returns the acts, the bins and the wrong rows.

        On a busy machine, the race is longer, until an act of the optimizer `suffices`; by default,
        it must have rewritten a file.
        """
        self._suffices = suffices or _rewrote
        self._ledgers.mkdir(parents=True, exist_ok=True)
        self._until = time.monotonic() + seconds
        writers: Sequence[Callable[[], None]] = [
            *(lambda n=number: self._append(n) for number in range(1, self._appenders + 1)),
            lambda: self._delete("copying-deleter", COPYING, self._copying),
            lambda: self._delete("marking-deleter", MARKING, self._spark.jvm_session()),
            self._merge,
            lambda: self._optimize(optimizer),
        ]
        failures: list[BaseException] = []

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=guarded, args=(writer,)) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for ledger in self._opened:
            ledger.close()
        assert not failures, failures
        return self._figures()

    def row_ids(self) -> dict[int, int]:
        """Returns the row ID of each row."""
        lines = self._spark.rows(f"SELECT id, _metadata.row_id AS row_id FROM {self._table}")
        return {row["id"]: row["row_id"] for row in map(decode, lines)}

    def _ledger(self, writer: str) -> Ledger:
        ledger = Ledger(self._ledgers, writer)
        self._opened.append(ledger)
        return ledger

    def _goes_on(self) -> bool:
        """Until the time is over and, on a busy machine, an act sufficed."""
        late = time.monotonic() - self._until
        if late < 0:
            return True
        return late < _PATIENCE and not any(map(self._suffices, acts(self._ledgers)))

    def _append(self, number: int) -> None:
        ledger, chance = self._ledger(f"appender-{number}"), random.Random(number)
        first = number * APPENDER_IDS
        while self._goes_on():
            ids = range(first, first + BLOCK)
            first += BLOCK
            values = ", ".join(_row(row, 0) for row in ids)
            statement = f"INSERT INTO {self._table} VALUES {values}"
            self._act(ledger, "append", ids, statement, self._spark.jvm_session())
            time.sleep(chance.uniform(0.5, 1.5))

    def _delete(self, name: str, share: int, session: Any) -> None:
        ledger, chance, done = self._ledger(f"{name}-1"), random.Random(share), set[int]()
        while self._goes_on():
            time.sleep(chance.uniform(0.5, 1.5))
            ids = chosen(self._ledgers, share, done, chance, most=5)
            if not ids:
                continue
            where = f"p = '{partition_of(ids[0])}' AND id IN ({', '.join(map(str, ids))})"
            if self._act(
                ledger, "delete", ids, f"DELETE FROM {self._table} WHERE {where}", session
            ):
                done.update(ids)

    def _merge(self) -> None:
        ledger, chance = self._ledger("merger-1"), random.Random(MERGING)
        value, new = 0, MERGED_IDS
        while self._goes_on():
            time.sleep(chance.uniform(0.5, 1.5))
            old = chosen(self._ledgers, MERGING, set(), chance, most=3)
            if not old:
                continue
            value, part = value + 1, partition_of(old[0])
            session = self._copying if value % 2 else self._spark.jvm_session()
            if value % 3 == 0:
                statement = (
                    f"UPDATE {self._table} SET v = {value}L "
                    f"WHERE p = '{part}' AND id IN ({', '.join(map(str, old))})"
                )
                self._act(ledger, "merge", old, statement, session, value=value)
                continue
            new += BLOCK
            while partition_of(new) != part:
                new += BLOCK
            ids = [*old, new, new + 1]
            values = ", ".join(_row(row, value) for row in ids)
            statement = (
                f"MERGE INTO {self._table} t USING (VALUES {values} AS s(id, v, text, p)) s "
                f"ON t.id = s.id AND t.p = s.p AND t.p = '{part}' "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
            self._act(ledger, "merge", ids, statement, session, value=value)

    def _optimize(self, optimizer: Optimizer) -> None:
        ledger = self._ledger("optimizer-1")
        while self._goes_on():
            optimizer(ledger)
            time.sleep(0.5)

    def _act(
        self,
        ledger: Ledger,
        kind: Any,
        ids: Sequence[int],
        statement: str,
        session: Any,
        *,
        value: int = 0,
    ) -> bool:
        try:
            with self._turn:
                session.sql(statement)
        except Py4JJavaError as error:
            problem = str(error.java_exception.toString())
            ledger.note(kind, "failed", ids=ids, value=value, problem=problem)
            return False
        ledger.note(kind, "committed", ids=ids, value=value)
        return True

    def _figures(self) -> dict[str, Any]:
        outcomes: Counter[str] = Counter()
        fates: Counter[str] = Counter()
        copied: Counter[str] = Counter()
        problems: Counter[str] = Counter()
        for act in acts(self._ledgers):
            outcomes[f"{act.writer.rpartition('-')[0]} {act.outcome}"] += 1
            fates.update(act.fates)
            copied.update(act.copied)
            if act.problem:
                problems[f"{act.writer.rpartition('-')[0]}: {act.problem[:120]}"] += 1
        self._spark.forget()
        lines = self._spark.rows(f"SELECT id, v, text, p FROM {self._table}")
        rows = [(row["id"], row["v"], row["text"], row["p"]) for row in map(decode, lines)]
        wrong = compared(expected(self._ledgers), rows)
        return {
            "acts": dict(sorted(outcomes.items())),
            "bins": dict(fates),
            "copied": dict(copied),
            "problems": problems.most_common(8),
            "rows": len(rows),
            "wrong": {name: ids for name, ids in asdict(wrong).items() if ids},
        }


def _rewrote(act: Act) -> object:
    return act.fates


def _row(row: int, value: int) -> str:
    return f"({row}L, {value}L, '{text_of(row)}', '{partition_of(row)}')"
