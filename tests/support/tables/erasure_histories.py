"""Random histories of tables with rows of a known value in a column that changes.

The column is dropped, added again, renamed and widened, it becomes a partition column or ceases to
be one, and column mapping is switched on and off. The log and the data files are written here, with
pyarrow alone; operations of the library do the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_maintenance import clock, open_table
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import (
    checkpoint,
    checksum,
    clean_log,
    compact_log,
    drop_feature,
    erasure_report,
    expire,
    keep_version,
    optimize,
    purge,
    set_properties,
    vacuum,
)
from delta_maintenance.operations.clean_log import CleanLogOptions
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.operations.erasure_report import ErasureReportOptions, ErasureReportResult
from delta_maintenance.operations.expire import ExpireOptions
from delta_maintenance.operations.keep_version import KeepVersionOptions
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.protocol.schema import parse_schema
from delta_maintenance.table.data.row_reader import FILES, RowLayout, RowReader

VALUE = 4711
"""The value of the rows to erase. No other column ever has it."""
_TYPES: dict[str, pa.DataType] = {
    "integer": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "decimal(12,2)": pa.decimal128(12, 2),
}
_WIDER = {"integer": "long"}
_NOW = {"allow_short_retention": True, "no_other_writers": True}
_MODE, _HIGHEST = "delta.columnMapping.mode", "delta.columnMapping.maxColumnId"
_FEATURES = ("columnMapping", "deletionVectors")


@dataclass
class _Column:
    name: str
    kind: str
    number: int
    physical: str
    changes: list[dict[str, str]] = field(default_factory=list)


class History:
    """A table on disk with a random history."""

    def __init__(self, root: Path, seed: int, *, features: bool = True) -> None:
        self.root = root
        self.random = Random(seed)
        self.version = -1
        self.numbers = 2
        self.ids = 0
        self.columns = [
            _Column("id", "long", 1, "id"),
            _Column("customer", self.random.choice([*_TYPES]), 2, "customer"),
        ]
        self.partitioned = self.random.random() < 0.3
        self.has_features = features and self.random.random() < 0.8
        # `deltalake` opens no table with it.
        self.widens = self.has_features and self.random.random() < 0.3
        self.mode = self.random.choice(["none", "name", "id"]) if self.has_features else "none"
        self.configuration: dict[str, str] = {}
        self.steps: list[str] = []
        (root / "_delta_log").mkdir(parents=True)
        self._commit(self._protocol(), self._metadata(), *self._adds())

    def play(self, steps: int) -> None:
        """Takes random steps."""
        taken: list[tuple[int, Callable[[], object]]] = [
            (6, self.append),
            (4, self.remove),
            (2, self.repartition),
            (1, self.change_type),
            (1, self.checkpoint),
            (1, self.vacuum),
            (1, self.clean),
            (1, self.keep),
            (1, self.maintain),
            (1, self.restore),
            (1, self.expire),
        ]
        if self.has_features:
            taken += [(3, self.drop), (3, self.rename), (1, self.mapping), (1, self.unmap)]
        if self.widens:
            taken += [(2, self.widen)]
        weights, choices = zip(*taken, strict=True)
        for _ in range(steps):
            step = self.random.choices(choices, weights)[0]
            with suppress(DeltaMaintenanceError):
                step()
            self.steps.append(step.__name__)
            self.version = open_table(str(self.root)).snapshot().version
            self._reload()

    @property
    def customer(self) -> _Column | None:
        """The column, if the latest version has it."""
        return next((column for column in self.columns if column.name == "customer"), None)

    def append(self) -> None:
        self._commit(*self._adds())

    def remove(self) -> None:
        """Removes some files, at most those with the value."""
        adds = self._live()
        some = adds if self.random.random() < 0.3 else self.random.sample(adds, min(1, len(adds)))
        self._commit(*[self._remove(add) for add in some])

    def repartition(self) -> None:
        """Replaces all files, partitioned by the column or not."""
        removes = [self._remove(add) for add in self._live()]
        self.partitioned = not self.partitioned and self.customer is not None
        self._commit(self._metadata(), *removes, *self._adds(value=self.random.random() < 0.2))

    def change_type(self) -> None:
        """Replaces all files and the type of the column."""
        if self.customer is None:
            return
        removes = [self._remove(add) for add in self._live()]
        self.customer.kind = self.random.choice([*_TYPES])
        self.customer.changes.clear()
        if self.mode != "none":
            self._rename_physically(self.customer)
        self._commit(self._metadata(), *removes, *self._adds(value=self.random.random() < 0.2))

    def drop(self) -> None:
        """Drops the column, or adds it again; with a mapping, files stay."""
        removes = [] if self.mode != "none" else [self._remove(add) for add in self._live()]
        if self.customer is None:
            self.numbers += 1
            kind = self.random.choice([*_TYPES])
            self.columns.append(_Column("customer", kind, self.numbers, "customer"))
            if self.mode != "none":
                self.columns[-1].physical = f"col-{self.numbers}"
        elif self.partitioned:
            return
        else:
            self.columns.remove(self.customer)
        self._commit(self._metadata(), *removes)

    def rename(self) -> None:
        """Renames the column to `client` or back."""
        if self.mode == "none" or self.partitioned:
            return
        names = {"customer": "client", "client": "customer"}
        column = next((each for each in self.columns if each.name in names), None)
        if column is not None and names[column.name] not in [each.name for each in self.columns]:
            column.name = names[column.name]
            self._commit(self._metadata())

    def widen(self) -> None:
        """Gives the column a wider type; files stay."""
        if self.customer is not None and self.customer.kind in _WIDER:
            before, after = self.customer.kind, _WIDER[self.customer.kind]
            self.customer.kind = after
            self.customer.changes.append({"fromType": before, "toType": after})
            self._commit(self._metadata())

    def mapping(self) -> None:
        """Switches the mapping on, without new files."""
        table = open_table(str(self.root))
        options = SetPropertiesOptions(properties={_MODE: "name"})
        set_properties.apply(table, set_properties.plan(table.snapshot(), options))

    def unmap(self) -> None:
        """Removes the mapping."""
        table = open_table(str(self.root))
        options = DropFeatureOptions(feature="columnMapping")
        drop_feature.apply(table, drop_feature.plan(table.snapshot(), options))

    def checkpoint(self) -> None:
        """Writes a checkpoint, and what else stands for commits."""
        table = open_table(str(self.root))
        verb = self.random.choice([checkpoint, checkpoint, checksum, compact_log])
        verb.apply(table, verb.plan(table.snapshot()))

    def vacuum(self) -> None:
        """Deletes every file that the latest version does not need, or is not held."""
        options = VacuumOptions(**_NOW, retention=timedelta())
        self._run(vacuum, options)

    def clean(self) -> None:
        """Deletes the log before the newest checkpoint."""
        self._run(clean_log, CleanLogOptions(**_NOW, log_retention=timedelta(), to_the_minute=True))

    def keep(self) -> None:
        """Keeps a version."""
        number = self.random.randint(0, self.version)
        self._run(keep_version, KeepVersionOptions(name=f"v{number}", keep=number))

    def maintain(self) -> None:
        """Rewrites files."""
        table = open_table(str(self.root))
        verb = self.random.choice([optimize, purge])
        verb.apply(table, verb.plan(table.snapshot()))

    def restore(self) -> None:
        """Restores an earlier version, with its schema."""
        number = self.random.randint(0, self.version)
        lines = [
            json.loads(line)
            for version in range(number + 1)
            for line in self._text(version).splitlines()
        ]
        metadata = [line for line in lines if "metaData" in line]
        files = {add["path"]: add for add in self._live(number)}
        if not metadata or not all((self.root / path).exists() for path in files):
            return
        if self.mode == "none" != metadata[-1]["metaData"]["configuration"].get(_MODE, "none"):
            return
        now = {add["path"] for add in self._live()}
        removes = [self._remove(add) for add in self._live() if add["path"] not in files]
        adds = [{"add": add} for path, add in files.items() if path not in now]
        self._commit(metadata[-1], *removes, *adds)

    def expire(self) -> None:
        """Deletes rows by their number."""
        old = timedelta(seconds=(clock.now().timestamp() - self.random.randint(0, self.ids)))
        mixed = self.random.choice(["leave", "rewrite", "deletion-vectors"])
        options = ExpireOptions(
            column="id", unit="s", older_than=old, mixed=mixed, allow_large_delete=True
        )
        self._run(expire, options)

    def report(self, name: str = "customer") -> ErasureReportResult:
        """Makes a report."""
        table = open_table(str(self.root))
        options = ErasureReportOptions(where=f"{name} = {VALUE}")
        planned = erasure_report.plan(table.snapshot(), options)
        return erasure_report.apply(table, planned)

    def versions_with_rows(self) -> list[int]:
        """The versions of which the library reads a row with the value."""
        return [version for version in range(self.version + 1) if self._has_rows(version)]

    def _has_rows(self, version: int) -> bool:
        try:
            snapshot = open_table(str(self.root)).snapshot(version=version)
        except DeltaMaintenanceError:
            return False
        names = {item.name for item in parse_schema(snapshot.metadata.schema_string or "").fields}
        layout = RowLayout.of(snapshot, names, zone=UTC)
        for batch in snapshot.log.scan():
            columns = [
                batch.adds[name]
                if name in batch.adds.column_names
                else pa.chunked_array([pa.nulls(batch.adds.num_rows, kind)])
                for name, kind in zip(FILES.names, FILES.types, strict=True)
            ]
            files = pa.table(columns, schema=FILES)
            for number in range(files.num_rows):
                # A reader of some files may not need those that are missing.
                with suppress(FileNotFoundError, DeltaMaintenanceError):
                    for rows in RowReader(snapshot.log.store, layout).read(files, number):
                        if has_value(rows.columns):
                            return True
        return False

    def _run(self, verb: Any, options: Any) -> None:
        table = open_table(str(self.root))
        context = RunContext(started=clock.now() + timedelta(minutes=2))
        verb.apply(table, verb.plan(table.snapshot(), options, context), context)

    def _text(self, version: int) -> str:
        path = self.root / "_delta_log" / f"{version:020}.json"
        return path.read_text() if path.exists() else ""

    def _reload(self) -> None:
        """Takes over what operations of the library changed in the metadata."""
        metadata = open_table(str(self.root)).snapshot().metadata
        self.configuration = dict(metadata.configuration)
        self.mode = self.configuration.get(_MODE, "none")
        fields = json.loads(metadata.schema_string or "")["fields"]
        self.columns = [
            _Column(
                item["name"],
                item["type"],
                item["metadata"].get("delta.columnMapping.id", number),
                item["metadata"].get("delta.columnMapping.physicalName", item["name"]),
                item["metadata"].get("delta.typeChanges", []),
            )
            for number, item in enumerate(fields, 1)
        ]
        self.numbers = max(self.numbers, *(column.number for column in self.columns))
        self.partitioned = bool(metadata.partition_columns)

    def _rename_physically(self, column: _Column) -> None:
        self.numbers += 1
        column.number, column.physical = self.numbers, f"col-{self.numbers}"

    def _protocol(self) -> dict[str, Any]:
        if not self.has_features:
            return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        features = [*_FEATURES, *(["typeWidening"] if self.widens else [])]
        versions = {"minReaderVersion": 3, "minWriterVersion": 7}
        return {"protocol": {**versions, "readerFeatures": features, "writerFeatures": features}}

    def _metadata(self) -> dict[str, Any]:
        conf = {name: value for name, value in self.configuration.items() if name != _HIGHEST}
        if self.has_features:
            conf["delta.enableDeletionVectors"] = "true"
        if self.widens:
            conf["delta.enableTypeWidening"] = "true"
        if self.mode != "none":
            conf |= {_MODE: self.mode, _HIGHEST: str(self.numbers)}
        fields = []
        for column in self.columns:
            metadata: dict[str, Any] = {}
            if self.mode != "none":
                metadata = {
                    "delta.columnMapping.id": column.number,
                    "delta.columnMapping.physicalName": column.physical,
                }
            if column.changes:
                metadata["delta.typeChanges"] = column.changes
            fields.append(
                {"name": column.name, "type": column.kind, "nullable": True, "metadata": metadata}
            )
        return {
            "metaData": {
                "id": "00000000-0000-4000-8000-000000000050",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": ["customer"] if self.partitioned else [],
                "configuration": conf,
                "createdTime": 0,
            }
        }

    def _adds(self, *, value: bool = True) -> list[dict[str, Any]]:
        """Writes files with some rows, of which some may have the value."""
        values = [VALUE if value and self.random.random() < 0.3 else n for n in (1, 9000)]
        if not self.partitioned:
            return [self._add(values, {})]
        own = self.customer
        assert own is not None
        return [self._add([n], {own.physical: _text_of(n, own.kind)}, own) for n in values]

    def _add(
        self, values: list[int], partition: dict[str, str], partitioned: _Column | None = None
    ) -> dict[str, Any]:
        named = {c.name: c for c in self.columns if c is not partitioned}
        ids = list(range(self.ids, self.ids + len(values)))
        self.ids += len(values)
        arrays, fields = [], []
        for column in named.values():
            own = ids if column.name == "id" else values
            metadata = {b"PARQUET:field_id": str(column.number).encode()}
            arrays.append(_array(own, column.kind))
            fields.append(
                pa.field(
                    column.physical,
                    arrays[-1].type,
                    metadata=None if self.mode == "none" else metadata,
                )
            )
        folder = "".join(f"{name}={text}/" for name, text in partition.items())
        if self.mode != "none" and folder and self.random.random() < 0.5:
            folder = f"{self.random.randrange(16):02x}/"
        path = f"{folder}part-{self.version + 1}-{self.ids}.parquet"
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(arrays, schema=pa.schema(fields)), self.root / path)
        stats: dict[str, Any] = {"numRecords": len(ids)}
        if self.random.random() < 0.7:
            for part, pick in (("minValues", pc.min), ("maxValues", pc.max)):
                stats[part] = {
                    item.name: _stated(pick(array).as_py())
                    for item, array in zip(fields, arrays, strict=True)
                }
            stats["nullCount"] = {item.name: 0 for item in fields}
        add = {
            "path": path,
            "partitionValues": partition,
            "size": (self.root / path).stat().st_size,
            "modificationTime": int(clock.now().timestamp() * 1000),
            "dataChange": True,
            "stats": json.dumps(stats),
        }
        return {"add": add}

    def _remove(self, add: dict[str, Any]) -> dict[str, Any]:
        remove = {
            "path": add["path"],
            "deletionTimestamp": int(clock.now().timestamp() * 1000),
            "dataChange": True,
        }
        if "deletionVector" in add:
            remove["deletionVector"] = add["deletionVector"]
        if self.random.random() < 0.7:
            remove |= {
                "extendedFileMetadata": True,
                "partitionValues": add["partitionValues"],
                "size": add["size"],
            }
        return {"remove": remove}

    def _live(self, version: int | None = None) -> list[dict[str, Any]]:
        snapshot = open_table(str(self.root)).snapshot(version=version)
        adds: list[dict[str, Any]] = []
        for batch in snapshot.log.scan():
            for add in batch.adds.to_pylist():
                known = {name: value for name, value in add.items() if value is not None}
                known["partitionValues"] = dict(known.get("partitionValues", ()))
                known.pop("tags", None)
                known.pop("stats_parsed", None)
                known.pop("partitionValues_parsed", None)
                if "deletionVector" in known:
                    vector = known["deletionVector"]
                    known["deletionVector"] = {k: v for k, v in vector.items() if v is not None}
                adds.append(known)
        return adds

    def _commit(self, *actions: dict[str, Any]) -> None:
        self.version += 1
        lines = [json.dumps(action) for action in ({"commitInfo": {}}, *actions)]
        path = self.root / "_delta_log" / f"{self.version:020}.json"
        path.write_text("\n".join(lines) + "\n")


def has_value(columns: list[pa.Array] | list[pa.ChunkedArray]) -> bool:
    """Whether a column has the value, in any type."""
    for column in columns:
        texts = {_text_of(VALUE, kind) for kind in _TYPES}
        if not pa.types.is_string(column.type):
            column = column.cast(pa.string())
        if pc.any(pc.is_in(column, value_set=pa.array(sorted(texts)))).as_py():
            return True
    return False


def _text_of(value: int, kind: str) -> str:
    return f"{value}.00" if kind.startswith("decimal") else str(value)


def _array(values: list[int], kind: str) -> pa.Array:
    if kind == "string":
        return pa.array([str(value) for value in values])
    return pa.array([Decimal(value) for value in values]).cast(_TYPES[kind])


def _stated(value: Any) -> Any:
    return value if isinstance(value, int | str) else float(value)
