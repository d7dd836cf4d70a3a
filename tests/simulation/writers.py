"""Writers of data: typical commits of engines, each with its intended effect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_OID, uuid5

import pyarrow as pa

from delta_maintenance.errors import CommitUnknownError
from delta_maintenance.protocol.commit import removes_of, staged_adds
from delta_maintenance.storage.core import Store
from delta_maintenance.table.commit import Transaction
from delta_maintenance.table.commit import Writer as Committer
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.evidence.overwritten_commits import verify_guarded
from delta_maintenance.table.read import Snapshot, Table
from tests.properties.model import State, state_of
from tests.simulation.actors import Actor
from tests.simulation.ledger import Effect, has
from tests.simulation.world import Z85, World, files_of, is_commit, vector_path
from tests.support.tables.actions import Action, add, dv_id
from tests.support.tables.table_builder import parquet_bytes

_PARTITIONS = ("x", "a b")
_HOT = 3
_PROPERTIES = ("delta.checkpointPolicy", "delta.checkpoint.writeStatsAsStruct")
"""Set by keepers, which alone may end them."""
_VECTOR = b"\1" + bytes(44)


class Writer(Actor):
    """Appends, deletes, rewrites, restores and annotates."""

    def __init__(
        self,
        *args: Any,
        kinds: Sequence[Kind],
        settings: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """`settings` are further ones of the transactions' `Writer`."""
        super().__init__(*args, **kwargs)
        self.kinds = kinds
        self.settings = settings or {}
        self.outcomes: list[tuple[str, object]] = []
        """Effects by transaction ID; none for commits that died."""

    def run(self, task: str) -> None:
        kind = self.chance.choice(self.kinds)
        planned: list[int] = []
        for number, store in self.attempts(longest=12):
            attempt = partial(self._attempt, task, number, kind, store, planned)
            if self.tried(store, attempt):
                return

    def _attempt(
        self, task: str, number: int, kind: Kind, store: Store, planned: list[int]
    ) -> None:
        snapshot = Table(store).snapshot()
        planned.append(snapshot.version)
        job = Job(self.world, store, snapshot, f"{task}/{number}")
        txn_id = str(uuid5(NAMESPACE_OID, job.txn_id))
        transaction = Transaction(
            snapshot,
            kind.__name__.upper(),
            operation_id=task,
            planned_version=planned[0],
            writer=Committer(
                now=self.now, new_id=lambda: txn_id, sleep=lambda _: None, **self.settings
            ),
        )
        effect = kind(job, transaction)
        if effect is None:
            return
        self.world.ledger.effects[txn_id] = effect
        try:
            outcome = transaction.commit()
        except CommitUnknownError as error:
            assert is_commit(error.file or ""), f"the commit is known: {error}"
            raise
        finally:
            if "quiet" in self.settings:
                # As every operation ends.
                verify_guarded(store)
        self.outcomes.append((txn_id, outcome))

    def judge(self) -> None:
        """Checks that the outcomes reported to this writer are the true ones."""
        for txn_id, outcome in self.outcomes:
            version = outcome.version if isinstance(outcome, Landed) else None
            ledger = self.world.ledger
            true = ledger.overwritten.get(txn_id, ledger.owners.get(txn_id))
            assert true == version, f"{txn_id} was told {outcome}"


class Job:
    """The context of one commit of a writer."""

    def __init__(self, world: World, store: Store, snapshot: Snapshot, txn_id: str) -> None:
        """`txn_id` names the attempt of a task. Commits have a UUID made from it."""
        self.world = world
        self.store = store
        self.snapshot = snapshot
        self.txn_id = txn_id
        self.chance = world.chance
        is_same = not world.ledger.overwritten
        self.state: State = world.ledger.states[snapshot.version] if is_same else state_of(snapshot)
        """The files of the snapshot, according to the judge while no commit was overwritten."""

    def pick(self, most: int) -> list[Action]:
        """Some live files, mostly of those that all writers change."""
        keys = sorted(self.state.live, key=str)
        if self.chance.random() < 0.7:
            keys = keys[:_HOT]
        chosen = self.chance.sample(keys, min(most, len(keys)))
        return [self.state.live[key] for key in chosen]

    def rows(self, file: Action) -> frozenset[str]:
        """The rows of a file without those that its deletion vector removes."""
        ledger = self.world.ledger
        return ledger.rows_of[file["path"]] - ledger.deleted_by.get(dv_id(file) or "", frozenset())

    def want_back(self, file: Action) -> bool:
        """Whether a removed file and its deletion vector still exist and can be restored."""
        files = files_of([file])
        self.world.wanted_back.setdefault(self.txn_id.split("-")[1], set()).update(files)
        return all(self.store.stat(path) is not None for path in sorted(files))

    def new_file(self, rows: frozenset[str] | None = None, **fields: Any) -> Action:
        """Writes a data file, with moved rows or new ones."""
        return new_file(self.world, self.store, rows, **fields)

    def new_vector(self, deleted: frozenset[str]) -> Action:
        """Writes a deletion vector file."""
        text = self.chance.choice(("", "ab")) + "".join(self.chance.choices(Z85[:62], k=20))
        # Below 62 every digit leaves a block of five within 32 bits.
        self.store.put_if_absent(vector_path(text), _VECTOR)
        vector = {
            "storageType": "u",
            "pathOrInlineDv": text,
            "offset": 1,
            "sizeInBytes": 36,
            "cardinality": len(deleted),
        }
        self.world.ledger.deleted_by[f"u{text}@1"] = deleted
        return vector


Kind = Callable[[Job, Transaction], Effect | None]


def new_file(
    world: World, store: Store, rows: frozenset[str] | None = None, **fields: Any
) -> Action:
    """Writes a data file and returns the object of its `add`."""
    part = world.chance.choice(_PARTITIONS)
    name = f"part-00000-{world.new_id()}.c000.snappy.parquet"
    place = f"part={part}/{name}"
    if rows is None:
        rows = frozenset(f"{name}#{n}" for n in range(world.chance.randint(1, 4)))
    data = _data_of(len(rows))
    store.put_if_absent(place, data)
    path = quote(place, safe="=/")
    world.ledger.rows_of[path] = rows
    stats = json.dumps({"numRecords": len(rows)})
    made: Action = {"size": len(data), "partitionValues": {"part": part}, "stats": stats}
    made = add(path, **made, modificationTime=world.now_ms, **fields)["add"]
    return made


def write(job: Job, transaction: Transaction) -> Effect:
    """A blind append."""
    files = [job.new_file() for _ in range(job.chance.choice((1, 1, 2)))]
    transaction.stage_adds(files)
    return Effect(inserted=frozenset().union(*map(job.rows, files)))


def streaming_update(job: Job, transaction: Transaction) -> Effect:
    """An append that records the progress of its application."""
    transaction.stage_txn(job.txn_id.partition("/")[0], 1)
    return write(job, transaction)


def delete(job: Job, transaction: Transaction) -> Effect | None:
    """Whole files with their rows."""
    files = job.pick(2)
    if not files:
        return None
    transaction.stage_removes(_read(transaction, files, data_change=True))
    return Effect(deleted=frozenset().union(*map(job.rows, files)))


def delete_rows(job: Job, transaction: Transaction) -> Effect | None:
    """One row of each file, by a deletion vector if the table supports them."""
    files = [file for file in job.pick(2) if len(job.rows(file)) > 1]
    if not files or not has(job.state, "deletionVectors"):
        return None
    gone, again = [], []
    for file in files:
        row = min(job.rows(file))
        gone.append(row)
        before = job.world.ledger.deleted_by.get(dv_id(file) or "", frozenset())
        again.append({**file, "dataChange": True, "deletionVector": job.new_vector(before | {row})})
    transaction.stage_removes(_read(transaction, files, data_change=True))
    transaction.stage_adds(again)
    return Effect(deleted=frozenset(gone))


def optimize(job: Job, transaction: Transaction) -> Effect | None:
    """The rows of some files in one new file."""
    files = job.pick(3)
    if not files:
        return None
    transaction.stage_removes(_read(transaction, files, data_change=False))
    rows = frozenset().union(*map(job.rows, files))
    transaction.stage_adds([job.new_file(rows, dataChange=False)])
    return Effect()


def restore(job: Job, transaction: Transaction) -> Effect | None:
    """A removed file in its last state, if it still exists."""
    ledger = job.world.ledger
    live = frozenset(ledger.rows_of_files(job.state))
    states = ledger.states[: job.snapshot.version]
    for state in states if job.chance.random() < 0.5 else reversed(states):
        for (_, vector), file in sorted(state.live.items(), key=str):
            rows = job.rows(file)
            if rows & live or (vector is not None and not has(job.state, "deletionVectors")):
                continue
            if not job.want_back(file):
                continue
            base, version = ledger.row_ids.get(file["path"], (None, None))
            back = {**file, "dataChange": True, "baseRowId": base}
            back["defaultRowCommitVersion"] = version
            transaction.read_whole_table()
            transaction.stage_adds([{k: v for k, v in back.items() if v is not None}])
            return Effect(inserted=rows)
    return None


def annotate(job: Job, transaction: Transaction) -> Effect | None:
    """Sets or removes a domain."""
    if not has(job.state, "domainMetadata"):
        return None
    name = job.chance.choice(("app.one", "app.two"))
    if name in job.state.domains and job.chance.random() < 0.5:
        transaction.remove_domain(name)
    else:
        transaction.stage_domain(name, job.txn_id)
    return Effect()


def set_tblproperties(job: Job, transaction: Transaction) -> Effect:
    """Sets a user property, and removes others."""
    metadata = job.snapshot.metadata
    ended = _PROPERTIES if job.chance.random() < 0.5 else ()
    configuration = {k: v for k, v in metadata.configuration.items() if k not in ended}
    configuration["owner"] = job.txn_id
    transaction.stage_metadata(
        type(metadata).from_json(metadata.to_json() | {"configuration": configuration})
    )
    return Effect()


KINDS: Sequence[Kind] = (
    write,
    streaming_update,
    delete,
    delete_rows,
    optimize,
    restore,
    annotate,
    set_tblproperties,
)


def _read(transaction: Transaction, files: Sequence[Action], *, data_change: bool) -> pa.Table:
    """Declares that the files were read. Returns their removes."""
    staged = staged_adds(files, partition_columns=("part",))
    transaction.read_files(staged)
    return removes_of(staged, data_change=data_change)


@cache
def _data_of(rows: int) -> bytes:
    return parquet_bytes(pa.table({"id": pa.array(range(rows), pa.int64())}))
