"""Transactions on small tables with concurrent writers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.table.commit import Transaction, Writer
from delta_maintenance.table.read import Snapshot, Table
from tests.support.tables import actions as log
from tests.support.tables.table_builder import EPOCH_MS, TableBuilder

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(hours=1)
TRACKED = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])


class RacedStore(MemoryStore):
    """Runs each of `races` once, directly before a put of the commit under test."""

    def __init__(self) -> None:
        super().__init__()
        self.races: list[Callable[[], object]] = []

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.races:
            self.races.pop(0)()
        return super().put_if_absent(path, data)


def built(
    protocol: log.Action = TRACKED,
    configuration: Mapping[str, str] | None = None,
    *more: log.Action,
) -> TableBuilder:
    builder = TableBuilder(RacedStore())
    builder.commit([protocol, log.metadata(configuration=configuration), *more])
    return builder


def races(builder: TableBuilder, *winners: Sequence[log.Action]) -> None:
    store = builder.store
    assert isinstance(store, RacedStore)
    for winner in winners:
        store.races.append(lambda lines=winner: builder.commit(lines))


def snapshot(builder: TableBuilder, store: Store | None = None) -> Snapshot:
    return Table(store or builder.store).snapshot()


def transaction(
    builder: TableBuilder, operation: str = "TEST", *, store: Store | None = None, **options: Any
) -> Transaction:
    """`options` are arguments of `Transaction` or fields of its `Writer`."""
    names = {each.name for each in fields(Writer)} & options.keys()
    defaults: dict[str, Any] = {"now": lambda: NOW, "sleep": lambda _: None}
    writer = Writer(**defaults | {name: options.pop(name) for name in names})
    return Transaction(snapshot(builder, store), operation, writer=writer, **options)


def append(builder: TableBuilder, path: str = "new", **options: Any) -> Transaction:
    txn = transaction(builder, "WRITE", **options)
    txn.stage_adds([log.add(path, stats='{"numRecords":10}')["add"]])
    return txn


def commit(txn: Transaction, **options: Any) -> Any:
    return txn.commit(**options)


def lines(builder: TableBuilder, version: int) -> list[dict[str, Any]]:
    text = builder.read(f"{version:020d}.json").decode()
    return [json.loads(line) for line in text.splitlines()]


def info(builder: TableBuilder, version: int) -> dict[str, Any]:
    value = lines(builder, version)[0]["commitInfo"]
    assert isinstance(value, dict)
    return value


def only(builder: TableBuilder, version: int, name: str) -> list[dict[str, Any]]:
    return [line[name] for line in lines(builder, version) if name in line]
