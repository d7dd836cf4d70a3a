"""Random tables whose newest checkpoint is sound Parquet and states something else than the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from pyroaring import BitMap64

from delta_maintenance.protocol.actions import encode_bitmap, z85_encode
from delta_maintenance.protocol.delta_log import commit_name
from delta_maintenance.storage.core import Store
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import parquet
from tests.support.tables.table_builder import EPOCH_MS, MINUTE_MS, TableBuilder

ROWS = 6
"""The number of rows of every data file."""
KINDS = ("classic", "multipart", "v2-classic", "v2-parquet", "v2-json")
DAMAGES = ("lost", "resurrected", "older-vector", "vector-lost", "mixed", "state", "twice")
_DATA = parquet(ROWS)
_STATS = json.dumps({"numRecords": ROWS})
_PROTOCOL = log.features("deletionVectors", "v2Checkpoint", writer_only=["domainMetadata"])
Draw = Callable[[st.SearchStrategy[Any]], Any]


def vector(rows: int) -> log.Action:
    """An inline deletion vector of the first rows."""
    data = encode_bitmap(BitMap64(range(rows)))
    data += b"\0" * (-len(data) % 4)
    return log.deletion_vector(
        z85_encode(data), storage_type="i", sizeInBytes=len(data), cardinality=rows
    )


@dataclass
class RandomTable(TableBuilder):
    """A table under construction by random commits, with every data file."""

    draw: Draw | None = None
    into: Store | None = None

    def __post_init__(self) -> None:
        super().__init__(self.into)
        self.live: dict[str, int] = {}
        self.commit([_PROTOCOL, log.metadata(), *(self.new(f"f{number}") for number in range(3))])

    def new(self, path: str, marked: int = 0) -> log.Action:
        """Writes a data file with a number of deleted rows, and returns its add."""
        self.store.put(path, _DATA)
        self.live[path] = marked
        return self.add(path, marked)

    def add(self, path: str, marked: int) -> log.Action:
        """The add of a file."""
        dv = vector(marked) if marked else None
        return log.add(path, dv=dv, size=len(_DATA), stats=_STATS)

    def remove(self, path: str, marked: int) -> log.Action:
        """The remove of a file, at the time of the next version."""
        dv = vector(marked) if marked else None
        at_ms = EPOCH_MS + (self.version + 1) * MINUTE_MS
        return log.remove(path, dv=dv, size=len(_DATA), deletionTimestamp=at_ms)

    def step(self) -> None:
        """Makes a random commit."""
        assert self.draw is not None
        version = self.version + 1
        actions: list[log.Action] = [log.commit_info()]
        kinds = ("add", "remove", "vector", "txn", "domain", "property", "again")
        for kind in self.draw(
            st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique=True)
        ):
            touched = {a[k]["path"] for a in actions for k in ("add", "remove") if k in a}
            free = sorted(self.live.keys() - touched)
            if kind == "add":
                actions.append(self.new(f"f{version}-new"))
            elif kind == "txn":
                actions.append(log.txn("app", version))
            elif kind == "domain":
                actions.append(log.domain("custom", str(version)))
            elif kind == "property":
                actions.append(log.metadata(configuration={"owner": str(version)}))
            elif kind == "remove" and len(free) > 1:
                path = self.draw(st.sampled_from(free))
                actions.append(self.remove(path, self.live.pop(path)))
            elif kind == "vector" and free:
                path = self.draw(st.sampled_from(free))
                marked = self.live[path]
                if marked < ROWS - 1:
                    actions.append(self.remove(path, marked))
                    actions.append(self.new(path, marked + 1))
            elif kind == "again":
                gone = sorted({f"f{number}" for number in range(3)} - self.live.keys() - touched)
                if gone:
                    actions.append(self.new(gone[0]))
        self.commit(actions)

    def write_checkpoint(
        self, kind: str, version: int, actions: Sequence[log.Action] | None = None
    ) -> list[str]:
        """Writes a checkpoint of a kind, by default with the state of the version."""
        if kind in ("classic", "multipart"):
            return self.checkpoint(version, actions=actions, parts=1 if kind == "classic" else 2)
        uuid = None if kind == "v2-classic" else f"{version:08d}-0000-4000-8000-000000000000"
        encoding = "json" if kind == "v2-json" else "parquet"
        sidecars = 0 if kind == "v2-classic" else 2
        return self.v2_checkpoint(
            version, actions=actions, sidecars=sidecars, encoding=encoding, uuid=uuid
        )

    def wrong_state(self, version: int, damage: str) -> list[log.Action] | None:
        """Returns a state of a version with a damage; None if the table has nothing for it."""
        assert self.draw is not None
        state = self.state(version)
        adds = [action for action in state if "add" in action]
        removes = [action for action in state if "remove" in action]
        paths = {action["add"]["path"] for action in adds}
        marked = [action for action in adds if "deletionVector" in action["add"]]
        gone = [action for action in removes if action["remove"]["path"] not in paths]
        if damage in ("lost", "mixed") and adds:
            lost = self.draw(st.lists(st.sampled_from(adds), min_size=1, unique_by=id))
            state = [action for action in state if not any(action is each for each in lost)]
        if damage in ("resurrected", "mixed") and gone:
            for action in self.draw(st.lists(st.sampled_from(gone), min_size=1, unique_by=id)):
                state = [each for each in state if each is not action]
                value = action["remove"]
                state.append(
                    log.add(value["path"], dv=value.get("deletionVector"), size=len(_DATA))
                )
        elif damage in ("older-vector", "vector-lost") and marked:
            action = self.draw(st.sampled_from(marked))
            older = action["add"]["deletionVector"]["cardinality"] - 1
            if damage == "vector-lost" or not older:
                older = 0
            state = [each for each in state if each is not action]
            state.append(self.add(action["add"]["path"], older))
        elif damage == "state":
            state = [action for action in state if not action.keys() & {"txn", "domainMetadata"}]
        elif damage == "twice" and adds:
            state = [*state, self.draw(st.sampled_from(adds))]
        return None if state == self.state(version) else state


@dataclass(frozen=True, kw_only=True)
class WrongTable:
    """A table with a wrong checkpoint, and what is known of it."""

    table: RandomTable
    first: int
    """The oldest version that is left."""
    wrong: int
    """The version of the first wrong checkpoint."""
    kind: str
    damage: str

    def truth(self, version: int) -> list[tuple[str, str | None]]:
        """The live files of a version by path and deletion vector."""
        adds = [a["add"] for a in self.table.state(version) if "add" in a]
        return sorted(((add["path"], log.dv_id(add)) for add in adds), key=str)

    @property
    def paths(self) -> list[str]:
        """The live files of the newest version."""
        return sorted(self.table.live)

    @property
    def rows(self) -> int:
        """The number of rows of the newest version."""
        return sum(ROWS - marked for marked in self.table.live.values())


@st.composite
def wrong_tables(draw: Draw) -> WrongTable | None:
    """Tables after any clean-up; None if the damage has no subject."""
    table = RandomTable(draw)
    base = draw(st.integers(0, 3))
    wrong = base + draw(st.integers(1, 3))
    last = wrong + draw(st.integers(0, 3))
    while table.version < last:
        table.step()
    pruned = draw(st.booleans())
    if pruned:
        table.write_checkpoint(draw(st.sampled_from(KINDS)), base)
    if wrong - base > 1 and draw(st.booleans()):
        table.write_checkpoint(draw(st.sampled_from(KINDS)), base + 1)
    damage, kind = draw(st.sampled_from(DAMAGES)), draw(st.sampled_from(KINDS))
    state = table.wrong_state(wrong, damage)
    if state is None:
        return None
    table.write_checkpoint(kind, wrong, state)
    table.hint(wrong)
    if last > wrong and draw(st.booleans()):
        # The next checkpoint, by a writer that read the wrong one.
        copied = TableBuilder()
        copied.commits = {0: state, 1: table.reconciled(wrong + 1, last)}
        table.write_checkpoint(draw(st.sampled_from(KINDS)), last, copied.state(1))
        table.hint(last)
    if pruned:
        keep = draw(st.sampled_from((base, base + 1)))
        table.drop(*(commit_name(version) for version in range(keep)))
    return WrongTable(
        table=table, first=base if pruned else 0, wrong=wrong, kind=kind, damage=damage
    )
