"""A race of Delta Spark, `deltalake` and our verbs for the commits of one table on S3.

The writers are processes: each Spark driver is a JVM, `deltalake` and each command line a fork.
Any of them may be killed at any request, and answers are lost (`proxy`).
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.store_races.accounts import Account, RowValues, read_acts
from tests.support.store_races.processes import (
    BLOCK,
    NEW,
    Place,
    append_by_deltalake,
    partition_of,
    run_verb,
    start,
)
from tests.support.store_races.proxy import Kill, RaceProxy

DRIVER_IDS = 100_000_000
"""The IDs of the rows of a writer begin at its number times this."""
LARGE_EVERY = 10
"""Every so many appends of a driver, the commit is larger than a part of 5 MB."""
_PATIENCE = 480
"""The most seconds by which a race is longer, and for one process."""
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
StartDriver = Callable[[str], DeltaSpark]
"""Starts a Spark driver with an access key."""


@dataclass(slots=True)
class SparkDriver:
    """One driver, which appends rows, and deletes and merges into its own rows."""

    name: str
    table: str
    """The address by which Spark reaches the table."""
    account: Account
    dice: random.Random
    start: StartDriver
    kinds: tuple[str, ...] = ("append", "append", "delete", "merge")
    """The kinds of its acts, all with the same chance."""
    session: DeltaSpark | None = None
    rows: dict[int, int] = field(default_factory=dict)
    """The value of each of its rows of which it is certain."""
    acts: int = 0
    last_id: int = 0
    """The last ID that a block of rows began with."""

    def create(self, properties: str) -> None:
        """Creates the table."""
        mark = f"{self.name}-0"
        self.account.begin("create", mark)
        session = self.ready()
        session.configure(USER_METADATA, mark)
        session.sql(
            f"CREATE TABLE delta.`{self.table}` (id LONG, v LONG, p STRING, at TIMESTAMP) "
            f"USING delta PARTITIONED BY (p) TBLPROPERTIES ({properties})"
        )
        self.account.end(mark, "committed", version=0)

    def ready(self) -> DeltaSpark:
        """Its session, which is started again after it was killed."""
        if self.session is None:
            self.session = self.start(self.name)
        return self.session

    def close(self) -> None:
        """Ends its process."""
        self.account.close()
        if self.session is not None:
            self.session.close()

    def act(self) -> None:
        """One transaction, and its account."""
        session = self.ready()
        self.acts += 1
        mark = f"{self.name}-{self.acts}"
        kind = self.dice.choice(self.kinds) if self.rows else "append"
        change = self._new_rows() if kind == "append" else self._changed_rows(kind)
        self.account.begin(kind, mark, change)
        before = {row: self.rows.pop(row) for row in change if row in self.rows}
        try:
            self._run(session, kind, mark, change)
        except Py4JJavaError as error:
            problem = self._text_of(error)
            # Delta's own conflicts; after anything else the commit may have landed.
            certain = "io.delta.exceptions." in problem or "_CONFLICT" in problem
            self.account.end(mark, "failed" if certain else "unknown", problem=problem)
            self.rows |= before if certain else {}
        except (Py4JError, OSError):
            self.account.end(mark, "unknown", problem="the driver was killed")
            session.discard()
            self.session = None
        else:
            self.account.end(mark, "committed")
            self.rows |= {row: value for row, value in change.items() if value is not None}

    def _run(self, session: DeltaSpark, kind: str, mark: str, change: RowValues) -> None:
        table, partition = f"delta.`{self.table}`", partition_of(next(iter(change)))
        values = ", ".join(
            f"({row}L, {value or 0}L, '{partition}', TIMESTAMP '{NEW} 00:00:00')"
            for row, value in change.items()
        )
        if kind == "append":
            padding = " " + "x" * 6_000_000 if self.acts % LARGE_EVERY == 3 else ""
            query = f"SELECT * FROM VALUES {values} AS rows(id, v, p, at)"
            session.write(self.table, query, userMetadata=mark + padding)
            return
        session.configure(USER_METADATA, mark)
        if kind == "delete":
            ids = ", ".join(map(str, change))
            session.sql(f"DELETE FROM {table} WHERE p = '{partition}' AND id IN ({ids})")
            return
        session.sql(
            f"MERGE INTO {table} t USING (VALUES {values} AS s(id, v, p, at)) s "
            f"ON t.id = s.id AND t.p = s.p AND t.p = '{partition}' "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def _new_rows(self) -> RowValues:
        self.last_id += BLOCK
        return dict.fromkeys(range(self.last_id, self.last_id + BLOCK), 0)

    def _changed_rows(self, kind: str) -> RowValues:
        partition = partition_of(self.dice.choice(list(self.rows)))
        rows_of_partition = [row for row in self.rows if partition_of(row) == partition]
        rows = self.dice.sample(rows_of_partition, min(3, len(rows_of_partition)))
        if kind == "delete":
            return dict.fromkeys(rows, None)
        self.last_id += BLOCK
        while partition_of(self.last_id) != partition:
            self.last_id += BLOCK
        return dict.fromkeys([*rows, self.last_id], self.acts)

    @staticmethod
    def _text_of(error: Py4JJavaError) -> str:
        try:
            return str(error.java_exception.toString())
        except (Py4JError, OSError):
            return "the driver died"


@dataclass(slots=True, kw_only=True)
class StoreRace:
    """The writers of one race, and what became of them."""

    place: Place
    proxy: RaceProxy
    drivers: list[SparkDriver]
    verbs: Mapping[tuple[str, ...], int]
    """Command lines without the table, each with its weight."""
    last_verbs: tuple[tuple[str, ...], ...] = ()
    """Command lines that run in the last third alone, since `deltalake` cannot write afterwards."""
    slots: int = 2
    """The number of verbs at the same time."""
    appends_by_deltalake: bool = True
    statuses_allowed: frozenset[int] = frozenset((0, 1, 3, 4, -9))
    """The exit statuses that a verb may have."""
    dice: random.Random
    statuses: Counter[str] = field(default_factory=Counter)
    """The exit statuses of the verbs."""
    failures: list[BaseException] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _running: dict[str, BaseProcess] = field(default_factory=dict)
    _number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, seconds: float, kills: int, *, enough: Callable[[], bool]) -> None:
        """Lets everybody work for so long, and on a busy machine until it is `enough`.

        Afterwards, no process runs but the Spark drivers, and no request is late.
        """
        until = time.monotonic() + seconds
        ended = self.place.folder / "ended"
        ended.unlink(missing_ok=True)
        self._ended.clear()
        killing = threading.Event()
        activities = [self._drive(driver) for driver in self.drivers]
        activities += [self._maintain] * self.slots
        activities += [self._keep_deltalake] * self.appends_by_deltalake
        activities += [self._kill(kills, seconds, killing)]
        with self._working(activities):
            verbs = list(self.last_verbs)
            while not self._ended.is_set():
                seconds_left = until - time.monotonic()
                if seconds_left < -_PATIENCE:
                    break
                if verbs and seconds_left < seconds / 3 and enough():
                    verbs = verbs[1:] if self._play(verbs[0]) == 0 else verbs
                if seconds_left < 0 and killing.is_set() and enough() and not verbs:
                    break
                time.sleep(0.2)
            self.proxy.disarm()
            ended.touch()
        assert not self.failures, self.failures
        assert enough() and not verbs, self.figures()

    def run_alone(self, *words: str) -> tuple[int | None, Any]:
        """Runs a verb after the race, and returns its exit status and its document."""
        status = self._play(words)
        return status, json.loads((self.place.folder / f"ours-{self._number}.json").read_text())

    def close(self) -> None:
        """Ends the processes."""
        for driver in self.drivers:
            driver.close()
        for process in self._running.values():
            process.kill()
            process.join()

    def figures(self) -> dict[str, Any]:
        """Counts the acts by writer, kind and outcome, the kills and the faults."""
        acts = Counter(
            f"{act.writer.partition('-')[0]} {act.kind} {act.outcome}"
            for act in read_acts(self.place.folder)
        )
        problems = Counter(
            f"{act.writer.partition('-')[0]}: {act.problem[:110]}"
            for act in read_acts(self.place.folder)
            if act.problem
        )
        return {
            "acts": dict(sorted(acts.items())),
            "verbs": dict(sorted(self.statuses.items())),
            "kills": dict(sorted(self.proxy.kills.items())),
            "all kills": self.proxy.kills.total(),
            "faults": dict(sorted(self.proxy.injected.items())),
            "all faults": self.proxy.injected.total(),
            "problems": problems.most_common(12),
        }

    @contextmanager
    def _working(self, activities: list[Callable[[], None]]) -> Iterator[None]:
        def run_until_failure(activity: Callable[[], None]) -> None:
            try:
                activity()
            except BaseException as error:
                self.failures.append(error)
                self._ended.set()

        threads = [threading.Thread(target=run_until_failure, args=(a,)) for a in activities]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _drive(self, driver: SparkDriver) -> Callable[[], None]:
        def act_until_the_end() -> None:
            while not self._ended.is_set():
                self.proxy.killers[driver.name] = driver.ready().kill
                driver.act()

        return act_until_the_end

    def _maintain(self) -> None:
        names, weights = list(self.verbs), list(self.verbs.values())
        while not self._ended.is_set():
            self._play(self.dice.choices(names, weights)[0])

    def _play(self, words: tuple[str, ...]) -> int | None:
        with self._lock:
            self._number += 1
            writer = f"ours-{self._number}"
        status = self._run_process(writer, run_verb, self.place, writer, words)
        self.statuses[f"{words[0]} {status}"] += 1
        if status not in self.statuses_allowed:
            log = (self.place.folder / f"{writer}.log").read_text()
            raise AssertionError(f"{' '.join(words)} ended with status {status}: {log[-2000:]}")
        return status

    def _keep_deltalake(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                self._number += 1
                number = self._number
            writer, first_id = f"deltalake-{number}", (10 + number) * DRIVER_IDS
            status = self._run_process(writer, append_by_deltalake, self.place, writer, first_id)
            assert status in (0, -9), status
            if status == 0:
                return

    def _run_process(self, writer: str, target: Callable[..., None], *arguments: Any) -> int | None:
        process = start(target, *arguments)
        with self._lock:
            self._running[writer] = process
        self.proxy.killers[writer] = process.kill
        process.join(_PATIENCE)
        assert process.exitcode is not None, f"{writer} {arguments[2:]} does not end"
        with self._lock:
            del self._running[writer]
        return process.exitcode

    def _kill(self, kills: int, seconds: float, done: threading.Event) -> Callable[[], None]:
        """Kills so many processes, evenly over the time: most of our verbs, at any request."""
        spark, deltalake = (max(1, kills // share) if kills else 0 for share in (25, 8))
        roles = ["spark"] * spark + ["deltalake"] * deltalake
        roles += ["ours"] * (kills - len(roles))
        self.dice.shuffle(roles)

        def kill_writers() -> None:
            began, armed = time.monotonic(), dict[str, str]()
            while self.proxy.kills.total() < kills and not self._ended.is_set():
                running = self._writers()
                for writer in [w for w in armed if w not in running or not self.proxy.is_armed(w)]:
                    role = armed.pop(writer)
                    # A verb may end without such a request.
                    roles.extend([role] if self.proxy.release(writer) else [])
                due = kills * (time.monotonic() - began) / seconds
                if roles and kills - len(roles) <= due:
                    writers = [w for w in running if w.startswith(roles[0]) and w not in armed]
                    if writers:
                        writer = self.dice.choice(writers)
                        armed[writer] = roles.pop(0)
                        self.proxy.arm(writer, self._draw_kill())
                        continue
                self._ended.wait(0.05)
            done.set()

        return kill_writers

    def _draw_kill(self) -> Kill:
        kind = self.dice.choice(("any", "put commit", "put commit", "list", "get", "put"))
        later = {"any": 30, "list": 6, "get": 6}.get(kind, 1)
        return Kill(
            kind=kind, after=self.dice.randrange(later), is_applied=self.dice.random() < 0.5
        )

    def _writers(self) -> list[str]:
        """The writers whose processes run now."""
        with self._lock:
            return [*self._running, *(driver.name for driver in self.drivers)]
