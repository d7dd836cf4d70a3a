"""Tables with a V2 checkpoint, and the incremental checkpoint that follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.checkpoint import (
    CheckpointOptions,
    CheckpointPlan,
    CheckpointResult,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.protocol.delta_log import SUMMARY_TAG
from delta_maintenance.protocol.delta_log.sidecars import _check
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import hinted_version
from tests.support.logs.checkpointing import (
    KEEP_TOMBSTONES,
    NOW,
    as_checkpointed,
    only,
    state_of,
    write,
)
from tests.support.tables.actions import Action, add, features, metadata
from tests.support.tables.table_builder import TableBuilder

V2 = {"delta.checkpointPolicy": "v2"}


def begun(
    *more: Action,
    files: int = 40,
    store: Store | None = None,
    properties: dict[str, str] | None = None,
) -> TableBuilder:
    """Builds a table with some files and the checkpoint policy `v2`, without a checkpoint."""
    table = TableBuilder(store)
    configuration = {**V2, **(KEEP_TOMBSTONES if properties is None else properties)}
    supported = features("v2Checkpoint", "deletionVectors")
    adds = [add(f"f{number:03d}") for number in range(files)]
    table.commit([supported, metadata(configuration=configuration), *adds, *more])
    return table


def based(*more: Action, **options: Any) -> TableBuilder:
    """Adds a checkpoint of this library of version 0, with ten file actions per sidecar."""
    table = begun(*more, **options)
    assert write(table.open(), per_sidecar=10).incremental is False
    return table


def planned(table: TableBuilder, **options: Any) -> CheckpointPlan:
    chosen = CheckpointOptions(actions_per_sidecar=10, **options)
    return checkpoint.plan(table.open().snapshot(), chosen, context=RunContext.at(NOW))


def incremental(table: TableBuilder, **options: Any) -> CheckpointResult:
    """Writes an incremental checkpoint, and checks that it equals the state of the commits."""
    result = write(table.open(), per_sidecar=10, incremental="always", **options)
    require_sound(table, result)
    assert result.incremental, result.notes
    return result


def require_sound(table: TableBuilder, result: CheckpointResult) -> None:
    assert result.status == "written" and result.path is not None
    alone = only(table.store, result.path, result.version).snapshot()
    expected = TableBuilder()
    for version in range(result.version + 1):
        expected.commit(table.commits[version])
    # Values that other writers stored in a sidecar are kept, and may state a change of data.
    found = as_checkpointed(state_of(alone))
    assert found == as_checkpointed(state_of(expected.open().snapshot()))
    assert hinted_version(table.store) == result.version


def sidecars_of(table: TableBuilder) -> tuple[Any, ...]:
    opened = table.open().snapshot().log.checkpoint
    assert opened is not None
    return opened.sidecars


def newest(table: TableBuilder) -> str:
    return sorted(name for name in table.names() if ".checkpoint." in name)[-1]


def rewritten_tags(table: TableBuilder, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the summary of each sidecar in the newest checkpoint, which is one of JSON."""
    name = newest(table)
    lines = [json.loads(line) for line in table.read(name).splitlines()]
    for line in lines:
        if "sidecar" in line:
            said = json.loads(line["sidecar"]["tags"][SUMMARY_TAG])
            del said["check"]
            change(said)
            said["check"] = _check(line["sidecar"]["path"], said)
            line["sidecar"]["tags"][SUMMARY_TAG] = json.dumps(said)
    table.write(name, "".join(json.dumps(line) + "\n" for line in lines).encode())


def forged_locations(table: TableBuilder) -> None:
    """Makes the tags say that no sidecar has any of the files of the table."""
    rewritten_tags(table, lambda said: said.update(locations=["zz", "zz"]))
