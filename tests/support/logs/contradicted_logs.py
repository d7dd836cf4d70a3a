"""Random tables whose log is sound, or contradicts the newest checkpoint in one way."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.operations import checkpoint
from tests.support.rewrites.data_files import inline_vector, parquet
from tests.support.tables.actions import (
    Action,
    add,
    commit_info,
    domain,
    features,
    metadata,
    remove,
    txn,
)
from tests.support.tables.table_builder import LOG, TableBuilder, log_text

ROWS = 20
_DOMAINS = ("user.a", "user.b")
Damage = Callable[[list[Action], random.Random], bool]
"""Changes the actions of a checkpoint; returns whether it could."""


class RandomLog:
    """A log with one checkpoint to be damaged, and everything else that states its contents."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self.table = TableBuilder(root)
        self.live: list[Action] = []
        self.files = 0
        self.table.commit(
            [
                commit_info("CREATE TABLE"),
                features("deletionVectors", "v2Checkpoint", writer_only=("domainMetadata",)),
                metadata(),
            ]
        )

    def new_file(self) -> Action:
        """Writes a data file and returns its add."""
        path = f"part-{self.files:05d}.parquet"
        first = self.files * ROWS
        self.files += 1
        data = parquet(pa.table({"id": range(first, first + ROWS), "part": ["x"] * ROWS}))
        (self.root / path).write_bytes(data)
        stats = json.dumps({"numRecords": ROWS})
        return add(path, size=len(data), stats=stats)

    def commit(self) -> None:
        """Adds a commit of a random kind."""
        chance = self.chance
        kind = chance.choice(["WRITE", "WRITE", "DELETE", "UPDATE", "SET"])
        if kind == "WRITE" or not self.live:
            adds = [self.new_file() for _ in range(chance.randint(1, 3))]
            self.live += adds
            lines = [commit_info("WRITE"), *adds]
            if chance.random() < 0.3:
                lines.append(txn("app", self.table.version + 1))
        elif kind == "SET":
            lines = [commit_info("SET"), domain(chance.choice(_DOMAINS), str(chance.random()))]
            if chance.random() < 0.3:
                lines.append(metadata(configuration={"k": str(chance.random())}))
        else:
            old = self.live.pop(chance.randrange(len(self.live)))["add"]
            lines = [commit_info(kind), _removed(old)]
            if kind == "UPDATE":
                marked = old.get("deletionVector", {}).get("cardinality", 0) + 1
                new = {"add": {**old, "deletionVector": inline_vector(range(marked))}}
                self.live.append(new)
                lines.append(new)
        self.table.commit(lines)

    def state(self, version: int) -> list[Action]:
        """The contents of a sound checkpoint."""
        return [copy.deepcopy(action) for action in self.table.state(version)]

    def write_checkpoint(self, kind: str, version: int, actions: list[Action]) -> None:
        """Writes a checkpoint with these actions."""
        table = self.table
        match kind:
            case "classic":
                table.checkpoint(version, actions=actions)
            case "parts":
                table.checkpoint(version, actions=actions, parts=3)
            case "ours":
                self._write_ours(version, actions)
            case _:
                encoding: Any = "json" if "json" in kind else "parquet"
                sidecars = 2 if "sidecars" in kind else 0
                table.v2_checkpoint(version, actions=actions, encoding=encoding, sidecars=sidecars)

    def _write_ours(self, version: int, actions: list[Action]) -> None:
        """Writes a checkpoint as this library does for a log with this state."""
        other = TableBuilder()
        for number in range(version):
            other.commit([commit_info()], version=number)
        other.commit([commit_info(), *actions], version=version)
        options = checkpoint.CheckpointOptions(kind="v2-json", actions_per_sidecar=4)
        opened = other.open()
        checkpoint.apply(opened, checkpoint.plan(opened.snapshot(), options))
        for status in other.store.list_from(LOG):
            if ".checkpoint." in status.path or "_last" in status.path:
                self.table.store.put(status.path, other.store.read(status.path))
        for status in other.store.list_from(f"{LOG}/_sidecars"):
            self.table.store.put(status.path, other.store.read(status.path))

    def write_hint(self, version: int, files: int) -> None:
        """Points the hint at the checkpoint."""
        self.table.hint({"version": version, "size": 1, "numOfAddFiles": files})

    def write_checksum(self, version: int, *, more: int = 0) -> None:
        """Writes a checksum that states `more` files than there are."""
        state = self.table.state(version)
        adds = [action["add"] for action in state if "add" in action]
        [protocol] = [action["protocol"] for action in state if "protocol" in action]
        [meta] = [action["metaData"] for action in state if "metaData" in action]
        vectors = [a["deletionVector"]["cardinality"] for a in adds if "deletionVector" in a]
        self.table.checksum(
            version,
            {
                "tableSizeBytes": sum(a["size"] for a in adds),
                "numFiles": len(adds) + more,
                "numDeletedRecordsOpt": sum(vectors),
                "numDeletionVectorsOpt": len(vectors),
                "numMetadata": 1,
                "numProtocol": 1,
                "protocol": protocol,
                "metadata": meta,
            },
        )


KINDS = ("classic", "parts", "json", "parquet", "json sidecars", "parquet sidecars", "ours")


def build(root: Path, chance: random.Random, damage: str | None) -> bool:
    """Builds a table below `root`; returns False if the damage has nothing to damage."""
    log = RandomLog(root, chance)
    for _ in range(chance.randint(4, 9)):
        log.commit()
    version = chance.randint(2, log.table.version)
    kind = chance.choice(KINDS)
    older = chance.randint(1, version - 1) if chance.random() < 0.4 else None
    if older is not None:
        log.write_checkpoint(chance.choice(("classic", "json sidecars")), older, log.state(older))
    actions = log.state(version)
    files = sum("add" in action for action in actions)
    if damage in CONTENTS and not CONTENTS[damage](actions, chance):
        return False
    try:
        log.write_checkpoint(kind, version, actions)
    except CorruptTableError:
        # This library does not write a state that readers interpret differently.
        return False
    if damage == "tags":
        if kind != "ours":
            return False
        _damage_tags(log, version)
    if damage == "hint" or (damage is None and kind != "ours" and chance.random() < 0.5):
        log.write_hint(version, files + (damage == "hint"))
    wrong = damage == "checksum"
    for number in {chance.randint(version, log.table.version), log.table.version}:
        if wrong or (damage is None and chance.random() < 0.5):
            log.write_checksum(number, more=int(wrong))
    if older is not None and chance.random() < 0.5:
        log.table.drop(*(f"{number:020d}.json" for number in range(older)))
    return True


def _removed(old: Mapping[str, Any]) -> Action:
    fields = {name: old[name] for name in ("size", "deletionVector") if name in old}
    return remove(old["path"], extendedFileMetadata=True, partitionValues={}, **fields)


def _some(actions: list[Action], kind: str, chance: random.Random) -> int | None:
    found = [at for at, action in enumerate(actions) if kind in action]
    return chance.choice(found) if found else None


def _lose_files(actions: list[Action], chance: random.Random) -> bool:
    at = _some(actions, "add", chance)
    if at is None:
        return False
    del actions[at]
    return True


def _resurrect(actions: list[Action], chance: random.Random) -> bool:
    at = _some(actions, "remove", chance)
    if at is None:
        return False
    old = actions[at]["remove"]
    fields = {name: old[name] for name in ("size", "deletionVector") if name in old}
    actions[at] = add(old["path"], **fields)
    return True


def _lose_vector(actions: list[Action], chance: random.Random) -> bool:
    found = [a["add"] for a in actions if "deletionVector" in a.get("add", {})]
    if not found:
        return False
    file = chance.choice(found)
    marked = file.pop("deletionVector")["cardinality"]
    if marked > 1 and chance.random() < 0.5:
        file["deletionVector"] = inline_vector(range(marked - 1))
    return True


def _change_protocol(actions: list[Action], chance: random.Random) -> bool:
    at = _some(actions, "protocol", chance)
    assert at is not None
    names = ("deletionVectors", "v2Checkpoint")
    actions[at] = features(*names, writer_only=("domainMetadata", "appendOnly"))
    return True


def _change_metadata(actions: list[Action], chance: random.Random) -> bool:
    at = _some(actions, "metaData", chance)
    assert at is not None
    actions[at] = metadata(configuration={"k": "other"})
    return True


def _change_domain(actions: list[Action], chance: random.Random) -> bool:
    at = _some(actions, "domainMetadata", chance)
    if at is None or chance.random() < 0.3:
        actions.append(domain("user.c", "x"))
    elif chance.random() < 0.5:
        del actions[at]
    else:
        actions[at]["domainMetadata"]["configuration"] = "other"
    return True


def _change_txn(actions: list[Action], chance: random.Random) -> bool:
    at = _some(actions, "txn", chance)
    if at is None:
        return False
    if chance.random() < 0.5:
        del actions[at]
    else:
        actions[at]["txn"]["version"] -= 1
    return True


def _bury_live_file(actions: list[Action], chance: random.Random) -> bool:
    at = _some(actions, "add", chance)
    if at is None:
        return False
    actions[at] = _removed(actions[at]["add"])
    return True


CONTENTS: Mapping[str, Damage] = {
    "lost files": _lose_files,
    "resurrected": _resurrect,
    "vectors": _lose_vector,
    "protocol": _change_protocol,
    "metadata": _change_metadata,
    "domains": _change_domain,
    "transactions": _change_txn,
    "tombstones of live files": _bury_live_file,
}
DAMAGES = (*CONTENTS, "tags", "hint", "checksum")


def _damage_tags(log: RandomLog, version: int) -> None:
    [name] = [n for n in log.table.names() if n.startswith(f"{version:020d}.checkpoint.")]
    lines = [json.loads(line) for line in log.table.read(name).splitlines()]
    if log.chance.random() < 0.5:
        [tags] = [
            line["checkpointMetadata"]["tags"] for line in lines if "checkpointMetadata" in line
        ]
        tags["numOfAddFiles"] = str(int(tags["numOfAddFiles"]) + 1)
        tags["sidecarNumActions"] = str(int(tags["sidecarNumActions"]) + 1)
    else:
        sidecars = [line["sidecar"] for line in lines if "sidecar" in line]
        log.chance.choice(sidecars)["sizeInBytes"] += 1
    log.table.write(name, log_text(lines))
