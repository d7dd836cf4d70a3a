"""The journal of bins that a run has rewritten but not committed, for the next run to adopt.

The journal is a file in a subfolder of the table whose name begins with `_`, so readers ignore it.
It is only a hint. If a run is killed, the journal remains, and the next run adopts the bins that
still fit the table, after checking their sources and their new files. New files that no run adopts
are orphans, which a vacuum deletes. The next run that rewrites anything deletes the journals that
it found.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.rewriting.contract import Contract
from delta_maintenance.protocol.data_files import ordered_digest, row_digest
from delta_maintenance.protocol.data_files.ordered_digest import OrderedSum
from delta_maintenance.protocol.data_files.row_digest import RowSums
from delta_maintenance.protocol.statistics.collect import StatisticsCollector
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.bins import Bin, RewrittenBin, Run
from delta_maintenance.table.data.data_file_writer import WrittenFile
from delta_maintenance.table.data.digests import DigestKind, RowsDigest, RowsSum
from delta_maintenance.table.data.read_back import read_back
from delta_maintenance.table_names import table_text

FOLDER = "_delta_maintenance/rewrites"
_FORM = 3
_DIGESTS = [row_digest.VERSION, ordered_digest.VERSION]
_LIFE = timedelta(hours=24)
"""The maximum age of new files to adopt."""
_logger = logging.getLogger(__name__)
# TypeError and ValueError come from values of other types in the journal.
_UNSOUND = (DeltaMaintenanceError, OSError, pa.ArrowException, TypeError, ValueError)
_RUN = tuple(item.name for item in fields(Run))


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalledBin:
    """A bin that an earlier run rewrote and proved."""

    sources: tuple[tuple[str, str | None], ...]
    """The path and the unique ID of the deletion vector of each source, in order."""
    row_ids: tuple[tuple[int | None, int | None], ...]
    """The base row ID and the default row commit version of each source."""
    outputs: tuple[WrittenFile, ...]
    runs: tuple[Run, ...]
    sums: RowsSum


class Journal:
    """The journal of one run. Failed writes are logged and otherwise ignored."""

    def __init__(self, store: Store, run_id: str, contract: Contract) -> None:
        self._store = store
        self._path = f"{FOLDER}/{run_id}.json"
        self._contract = fingerprint(contract)
        self._written = False

    def save(self, bins: Sequence[RewrittenBin]) -> None:
        """Replaces the journal; `bins` are all bins that are rewritten but not committed."""
        if not bins and not self._written:
            return
        document = {
            "form": _FORM,
            "digests": _DIGESTS,
            "contract": self._contract,
            "bins": [_to_json(done) for done in bins],
        }
        try:
            self._store.put(self._path, json.dumps(document).encode())
            self._written = True
        except (DeltaMaintenanceError, OSError) as error:
            shown = table_text(self._store.root)
            _logger.warning("%s: no journal of the rewrite is kept: %s", shown, error)

    def clear(self) -> None:
        """Deletes the journal, because no bin remains to be adopted."""
        if self._written:
            _delete(self._store, self._path)
            self._written = False


def adopted_since(now: datetime, retention: timedelta) -> int:
    """Returns the minimum modification time of new files to adopt.

    In milliseconds since 1970-01-01 UTC. A vacuum deletes orphans that are older than the table's
    retention. Half of the retention is reserved for the run that adopts the files.
    """
    return epoch_millis(now - min(_LIFE, retention / 2))


def left_behind(
    store: Store, contract: Contract, *, since: int
) -> Iterator[tuple[str, list[JournalledBin]]]:
    """Yields the journals of runs that did not commit all of their bins.

    Each is yielded with its bins that fit the contract. The caller must check that the sources of
    these bins are still live.
    """
    try:
        found = list(store.list_from(FOLDER))
    except (DeltaMaintenanceError, OSError) as error:
        shown = table_text(store.root)
        _logger.warning("%s: journals of earlier rewrites cannot be read: %s", shown, error)
        return
    wanted = fingerprint(contract)
    for status in found:
        bins: list[JournalledBin] = []
        if status.modified_ms >= since:
            try:
                document = json.loads(store.read(status.path))
                stated = document["form"], document["digests"], document["contract"]
                if stated == (_FORM, _DIGESTS, wanted):
                    bins = [_from_json(entry) for entry in document["bins"]]
            except (
                DeltaMaintenanceError,
                OSError,
                ValueError,
                RecursionError,
                KeyError,
                TypeError,
            ) as error:
                shown = table_text(store.root)
                _logger.warning("%s: the journal %s cannot be read: %s", shown, status.path, error)
        yield status.path, bins


def is_sound(
    store: Store,
    found: JournalledBin,
    contract: Contract,
    *,
    partition: Mapping[str, str | None],
    since: int,
) -> bool:
    """Whether the new files of a bin exist, with the sizes and row counts of the journal.

    Reads only footers; `proved` reads the rows.
    """
    try:
        for output in found.outputs:
            status = store.stat(output.name)
            if status is None or status.size != output.size or status.modified_ms < since:
                return False
            layout = contract.spec.files.layout
            read_back(store, output, layout, RowsDigest(layout.schema, partition, "counts"))
    except _UNSOUND:
        return False
    return True


def proved(
    store: Store, found: JournalledBin, work: Bin, contract: Contract
) -> RewrittenBin | None:
    """Returns a journalled bin as a result of this run; None if the proof fails.

    Reads the new files, which must contain the rows of the sources as they are in the log now.
    Statistics and times come from the files. Only the digest of the sources' rows comes from the
    journal, which may be outdated or damaged.
    """
    files, proof = contract.spec.files, contract.spec.proof
    if found.sources != tuple(source.key for source in work.sources):
        return None
    if files.layout.tracks_rows and found.row_ids != tuple(s.row_ids for s in work.sources):
        return None
    in_order = isinstance(found.sums, OrderedSum)
    kind: DigestKind = "counts" if proof == "counts" else "in-order" if in_order else "sums"
    digest = RowsDigest(files.layout.schema, dict(work.partition_values), kind)
    outputs = []
    try:
        if not _is_complete(found, work):
            return None
        for output in found.outputs:
            status = store.stat(output.name)
            if status is None or status.size != output.size:
                return None
            statistics = StatisticsCollector(files.statistics, files.layout.schema)
            read_back(store, output, files.layout, digest, statistics=statistics)
            seen = replace(output, modified_ms=status.modified_ms, stats=statistics.render())
            outputs.append(seen)
    except _UNSOUND:
        return None
    if digest.total() != (found.sums if proof == "rows" else RowSums(rows=found.sums.rows)):
        return None
    return RewrittenBin(bin=work, outputs=tuple(outputs), runs=found.runs, sums=found.sums)


def _is_complete(found: JournalledBin, work: Bin) -> bool:
    """Whether the rows of all sources are contiguous in the new files and fill them."""
    if len(found.runs) != len(work.sources):
        return False
    filled = [0] * len(found.outputs)
    for number, (run, source) in enumerate(zip(found.runs, work.sources, strict=True)):
        known = source.num_records
        if run.source != number or run.rows < 0:
            return False
        if known is not None and run.rows != known - source.deleted_rows:
            return False
        if not run.rows:
            continue
        if not 0 <= run.output < len(filled) or run.offset != filled[run.output]:
            return False
        filled[run.output] += run.rows
    return filled == [output.rows for output in found.outputs]


def forget(store: Store, path: str) -> None:
    """Deletes the journal of an earlier run."""
    _delete(store, path)


def fingerprint(contract: Contract) -> str:
    """Returns a digest that is equal for contracts with which the same files are written."""
    files = contract.spec.files
    form = files.group_rows, files.group_bytes, sorted(files.bloom_filters)
    said = repr((contract.table_id, files.layout, files.statistics, contract.iceberg_compat, form))
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def _delete(store: Store, path: str) -> None:
    try:
        store.delete(path)
    except (DeltaMaintenanceError, OSError) as error:
        shown = table_text(store.root)
        _logger.warning("%s: the journal %s cannot be deleted: %s", shown, path, error)


def _to_json(done: RewrittenBin) -> dict[str, Any]:
    return {
        "sources": [source.key for source in done.bin.sources],
        "rowIds": [source.row_ids for source in done.bin.sources],
        "outputs": [asdict(output) for output in done.outputs],
        # One per source: `asdict` takes longer than all the rest.
        "runs": [{name: getattr(run, name) for name in _RUN} for run in done.runs],
        "sums": asdict(done.sums),
    }


def _from_json(entry: Mapping[str, Any]) -> JournalledBin:
    return JournalledBin(
        sources=tuple((str(path), vector) for path, vector in entry["sources"]),
        row_ids=tuple((base, version) for base, version in entry["rowIds"]),
        outputs=tuple(WrittenFile(**output) for output in entry["outputs"]),
        runs=tuple(Run(**run) for run in entry["runs"]),
        sums=(OrderedSum if "digest" in entry["sums"] else RowSums)(**entry["sums"]),
    )
