"""The registry of operations: the built-in operations, and those of other distributions.

A distribution adds an operation by an entry point of the group `delta_maintenance.operations`,
whose name is that of the operation and whose value is a reference to the `OperationRecord`. Every
process of an environment with that distribution then has the operation. Entry points take some
milliseconds to read, so they are read only for a name that is not built in, or for the list of all
names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.operation import OperationRecord, load

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

AnyOperation = OperationRecord[Any, Any, Any]

ENTRY_POINTS = "delta_maintenance.operations"

BUILT_IN = (
    "fsck",
    "publish",
    "upgrade-protocol",
    "set-properties",
    "set-clustering",
    "backfill-row-ids",
    "erasure-report",
    "keep-version",
    "expire",
    "layout",
    "cluster",
    "optimize",
    "purge",
    "recompute-stats",
    "checkpoint",
    "checksum",
    "compact-log",
    "clean-log",
    "clean-staged",
    "vacuum",
    "drop-feature",
    "add-constraint",
)
"""The operations of this distribution. A policy runs them in this order.

First the integrity check, which ends the run on a corrupt table before anything is written; then
`publish`, because writers may wait for it; then the operations that change the table, so that all
others see the changed table; then the operations that write, and last those that delete:
`clean-log` needs a checkpoint, and `vacuum` a short log.
"""

_logger = logging.getLogger(__name__)
_registered: dict[str, AnyOperation] = {}
_loaded: dict[str, AnyOperation] = {}


def find(name: str) -> AnyOperation:
    """Returns the operation with this name. `InvalidRequestError` if there is none."""
    record = known(name)
    if record is None:
        raise InvalidRequestError(
            f"unknown operation {name!r}", remedy=f"name one of {', '.join(names())}"
        )
    return record


def known(name: str) -> AnyOperation | None:
    """Returns the operation with this name; None if it is not installed."""
    if name in _registered:
        return _registered[name]
    return _built_in(name) if name in BUILT_IN else _by_entry_point(name)


def names() -> tuple[str, ...]:
    """Returns the names of all operations."""
    return tuple(record.name for record in operations())


def operations() -> tuple[AnyOperation, ...]:
    """Returns all operations, in the order in which a policy runs them.

    Operations of other distributions follow the built-in ones with the same effects. An operation
    that cannot be loaded is omitted, with a warning.
    """
    records = [_built_in(name) for name in BUILT_IN]
    by_entry_point = {name: _by_entry_point(name) for name in _points()}
    further = {**by_entry_point, **_registered}
    for _, record in sorted(further.items()):
        if record is None:
            continue
        earlier = [
            at for at, other_record in enumerate(records) if _phase(other_record) <= _phase(record)
        ]
        records.insert(earlier[-1] + 1 if earlier else 0, record)
    return tuple(records)


def policy_operations() -> tuple[AnyOperation, ...]:
    """Returns the operations that a policy can request, in the order in which they run."""
    return tuple(record for record in operations() if record.policy is not None)


def spark_operations() -> tuple[AnyOperation, ...]:
    """Returns the operations that run as Spark jobs."""
    return tuple(record for record in operations() if record.spark is not None)


def register(record: AnyOperation) -> None:
    """Adds an operation to this process; `InvalidRequestError` if the name is taken.

    For embedding and tests. A policy knows the operation only if it is registered before
    `delta_maintenance.policies` is imported; an entry point has no such limit.
    """
    if record.name in BUILT_IN or record.name in _registered:
        raise InvalidRequestError(
            f"there is an operation {record.name!r} already", remedy="choose another name"
        )
    _registered[record.name] = record


def unregister(name: str) -> None:
    """Removes an operation that `register` added."""
    _registered.pop(name, None)
    _loaded.pop(name, None)


def _built_in(name: str) -> AnyOperation:
    if name not in _loaded:
        package = f"delta_maintenance.operations.{name.replace('-', '_')}"
        _loaded[name] = load(f"{package}:RECORD")
    return _loaded[name]


def _by_entry_point(name: str) -> AnyOperation | None:
    if name not in _points():
        return None
    if name not in _loaded:
        try:
            _loaded[name] = _points()[name].load()
        except Exception as error:
            # A broken distribution must not break the operations of others.
            _logger.warning("the operation %s cannot be loaded: %s", name, error)
            return None
    return _loaded[name]


@cache
def _points() -> Mapping[str, EntryPoint]:
    # Importing this takes longer than a short command.
    from importlib.metadata import entry_points

    points = entry_points(group=ENTRY_POINTS)
    return {point.name: point for point in points if point.name not in BUILT_IN}


def _phase(record: AnyOperation) -> int:
    """Sort key: operations that change the table, only read, write, delete, and those that no
    policy runs.
    """
    effects = record.effects
    if record.policy is None:
        return 4
    if effects.changes_table:
        return 0
    return 3 if effects.deletes else 1 if effects.only_reads else 2
