"""Tables with writers concurrent to a backfill of row IDs, and the invariants of their logs.

The checks read the log as JSON, line by line, and share no code with the tested operation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from delta_maintenance.protocol.commit import removes_of
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Put, Store
from delta_maintenance.table.commit import Transaction
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.read import Table

Action = dict[str, Any]
BACKFILL = "ROW TRACKING BACKFILL"


class RacedStore(MemoryStore):
    """Lets others act directly before a file of ours, each of them once; not before the file that
    tells the clock of the store.
    """

    def __init__(self) -> None:
        super().__init__()
        self.races: list[Callable[[], object] | None] = []
        """In the order of our commits; None skips one."""
        self.racing = False

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.races and not self.racing and not path.endswith(".tmp"):
            self.racing = True
            try:
                if (race := self.races.pop(0)) is not None:
                    race()
            finally:
                self.racing = False
        return super().put_if_absent(path, data)


def append(store: Store, path: str, rows: int = 5) -> int:
    """Adds a file like a writer that supports row tracking, and returns the version."""
    txn = Transaction(Table(store).snapshot(), "WRITE")
    stats = json.dumps({"numRecords": rows})
    txn.stage_adds(
        [
            {
                "path": path,
                "partitionValues": {},
                "size": 1,
                "modificationTime": 1,
                "dataChange": True,
                "stats": stats,
            }
        ]
    )
    return _landed(txn)


def delete(store: Store, path: str) -> int:
    """Removes a live file with its rows."""
    txn, live = _reading(store, "DELETE", path)
    txn.stage_removes(removes_of(live, data_change=True))
    return _landed(txn)


def delete_rows(store: Store, path: str, vector: Action) -> int:
    """Replaces the deletion vector of a live file, with all its other fields."""
    txn, live = _reading(store, "DELETE", path)
    (add,) = state(store, lambda action: "add" in action and action["add"]["path"] == path)
    txn.stage_removes(removes_of(live, data_change=True))
    txn.stage_adds([{**add["add"], "deletionVector": vector, "dataChange": True}])
    return _landed(txn)


def compact(store: Store, *paths: str, into: str, rows: int) -> int:
    """Moves the rows of live files to a new one."""
    snapshot = Table(store).snapshot()
    live = _live(snapshot, *paths)
    txn = Transaction(snapshot, "OPTIMIZE")
    txn.read_files(live)
    txn.stage_removes(removes_of(live, data_change=False))
    add = {"path": into, "partitionValues": {}, "size": 1, "modificationTime": 1}
    txn.stage_adds([{**add, "dataChange": False, "stats": json.dumps({"numRecords": rows})}])
    return _landed(txn)


def commits(store: Store) -> Iterator[tuple[int, list[Action]]]:
    """Every commit of the log, by ascending version."""
    for status in store.list_from("_delta_log"):
        stem, _, suffix = status.path.rpartition("/")[2].partition(".")
        if suffix == "json" and stem.isdigit():
            yield int(stem), [json.loads(line) for line in store.read(status.path).splitlines()]


def state(
    store: Store, wanted: Callable[[Action], bool] = lambda _: True, *, until: int | None = None
) -> list[Action]:
    """Returns the live adds, by path and deletion vector, replayed line by line."""
    live: dict[tuple[str, str], Action] = {}
    for version, actions in commits(store):
        if until is not None and version > until:
            break
        for action in actions:
            if "remove" in action:
                live.pop(_key(action["remove"]), None)
        for action in actions:
            if "add" in action:
                live[_key(action["add"])] = action
    return [action for action in live.values() if wanted(action)]


def check(store: Store, *, enabled: bool = True, others_may_renumber: bool = False) -> None:
    """Checks that row IDs are unique over all versions, stable for each path, and below a rising
    mark.

    With `enabled`, the table must have row tracking enabled and every live file must have row IDs.
    `others_may_renumber`: before row tracking is enabled, row IDs need not be stable, and Delta
    Spark assigns new ones to a file that it changes during a backfill.
    """
    ranges: dict[str, tuple[int, int, int]] = {}
    renumbered: list[tuple[int, int, int]] = []
    mark, configuration, features = -1, {}, []
    for version, actions in commits(store):
        for action in actions:
            if "domainMetadata" in action:
                assert action["domainMetadata"]["domain"] == "delta.rowTracking"
                new = json.loads(action["domainMetadata"]["configuration"])["rowIdHighWaterMark"]
                # Delta Spark repeats the mark in a commit that assigns no IDs after it lost a race.
                rises = new > mark or (others_may_renumber and new == mark)
                assert rises, f"the mark of version {version} does not rise"
                mark = new
            if "metaData" in action:
                configuration = action["metaData"]["configuration"]
            if "protocol" in action:
                features = action["protocol"].get("writerFeatures", [])
        for action in actions:
            add = action.get("add", {})
            if add.get("baseRowId") is None:
                continue
            path, first = add["path"], add["baseRowId"]
            rows = json.loads(add["stats"])["numRecords"]
            given = (first, rows, add["defaultRowCommitVersion"])
            may = others_may_renumber and configuration.get("delta.enableRowTracking") != "true"
            if may and BACKFILL not in map(_operation, actions) and path in ranges:
                renumbered.append(ranges.pop(path))
            assert ranges.setdefault(path, given) == given, f"{path} got other row IDs"
            assert add["defaultRowCommitVersion"] <= version
            assert first + rows - 1 <= mark, f"{path} is above the mark of version {version}"
        if configuration.get("delta.enableRowTracking") == "true":
            assert {"rowTracking", "domainMetadata"} <= set(features)
            live = state(store, until=version)
            assert all(item["add"].get("baseRowId") is not None for item in live)
            assert all(item["add"].get("defaultRowCommitVersion") is not None for item in live)
    # A file that kept its row IDs is in both.
    spans = sorted({(first, first + n) for first, n, _ in (*ranges.values(), *renumbered) if n})
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    if enabled:
        assert configuration["delta.enableRowTracking"] == "true"
        names = [
            configuration[f"delta.rowTracking.materialized{which}ColumnName"]
            for which in ("RowId", "RowCommitVersion")
        ]
        assert names[0].startswith("_row-id-col-") and names[1].startswith(
            "_row-commit-version-col-"
        )


def without_row_ids(actions: list[Action]) -> dict[tuple[str, str], Action]:
    """Returns adds by key, without the fields that a backfill may change."""
    changed = ("baseRowId", "defaultRowCommitVersion", "dataChange")
    return {
        _key(action["add"]): {k: v for k, v in action["add"].items() if k not in changed}
        for action in actions
    }


def _operation(action: Action) -> str | None:
    return action.get("commitInfo", {}).get("operation")


def _key(action: Action) -> tuple[str, str]:
    return action["path"], json.dumps(action.get("deletionVector"), sort_keys=True)


def _reading(store: Store, operation: str, path: str) -> tuple[Transaction, Any]:
    snapshot = Table(store).snapshot()
    live = _live(snapshot, path)
    txn = Transaction(snapshot, operation)
    txn.read_files(live)
    return txn, live


def _live(snapshot: Any, *paths: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    batches = [batch.adds for batch in snapshot.log.scan()]
    files = pa.concat_tables(batches, promote_options="permissive")
    return files.filter(pc.is_in(files["path"], value_set=pa.array(paths)))


def _landed(txn: Transaction) -> int:
    outcome = txn.commit()
    assert isinstance(outcome, Landed), outcome
    return outcome.version
