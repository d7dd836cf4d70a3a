"""Every kind of corruption that `fsck` finds without opening files, against every writing verb."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator

import pytest

from delta_maintenance.address import Address
from delta_maintenance.cli import main as cli
from delta_maintenance.operations.core import operations
from delta_maintenance.operations.fsck.findings import KINDS
from delta_maintenance.storage import MemoryStore, memory
from tests.fuzz.verbs import VERBS
from tests.operations.fsck.test_findings import SEEDS
from tests.support.rewrites.data_files import inline_vector
from tests.support.tables import actions as log
from tests.support.tables.sound_tables import ROWS, SoundTable

CORRUPT = 5
ADDRESS = "memory://corrupt-table/table"
OMITTED = ("--dry-run", "--ignore-missing-files")
DEEP = {
    *("unreadable-data-file", "row-count-differs", "wrong-statistics"),
    *("repeated-row-id",),
    *("missing-not-null-column", "widened-without-feature"),
}
"""Found only by `fsck --deep`."""
FOUND = [k for k, kind in KINDS.items() if kind.severity == "corrupt" and k not in DEEP]
WRITING = {o.name for o in operations() if not o.effects.only_reads} - {"fsck", "publish"}
REWRITING = {"optimize", "cluster", "purge", "drop-feature"}
STATE = {"checkpoint", "checksum", "vacuum", *REWRITING}
"""The verbs that read all file actions and write what they found."""
ROW_IDS = {
    "delta.rowTracking.materializedRowIdColumnName": "_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_version",
}

REFUSED = {
    # The latest version cannot be opened.
    "unreadable-version": WRITING,
    "log-gap": WRITING,
    "overwritten-commit": WRITING,
    "needed-overwritten-commit": WRITING,
    # What a checkpoint, or the hint, states of the checkpoint is known when a table is open.
    "sidecar-size": WRITING,
    "sidecar-differs": WRITING,
    "hint-differs": WRITING,
    # Protocol, metadata and schema are known when a table is open.
    "repeated-action": WRITING,
    "unreadable-schema": WRITING,
    "unknown-partition-column": WRITING,
    "repeated-column": WRITING,
    "repeated-column-id": WRITING,
    "variant-layout": WRITING,
    # File actions are known to verbs that read them.
    "unreadable-commit": STATE,
    "repeated-file": STATE,
    "added-and-removed": STATE,
    "two-live-vectors": STATE,
    "two-spellings": STATE,
    # Only a rewrite depends on them. `upgrade-protocol` and `backfill-row-ids` are remedies.
    "vector-without-feature": REWRITING - {"drop-feature"},
    "missing-row-id": REWRITING,
    "row-id-mark-too-low": REWRITING,
    "future-row-commit-version": REWRITING,
    "overlapping-row-ids": REWRITING,
    # Known to a verb that lists the files.
    "missing-data-file": {"vacuum"},
    "misnamed-file": {"vacuum"},
    "missing-deletion-vector": {"vacuum"},
}
"""The verbs that refuse a table, by kind."""
ELSEWHERE = {
    # Of catalog-managed tables, to which no verb writes.
    "lost-commit",
    # An earlier commit, on which the latest version does not depend.
    "in-commit-timestamp",
    # Files of the log that repeat others.
    "unreadable-checkpoint",
    "missing-sidecar",
    "checkpoint-differs",
    "compaction-differs",
    "checksum-differs",
    # Rewrites leave out the file.
    "doubled-file",
    "null-in-not-null-column",
    # Vacuum keeps the file, and a rewrite leaves out the entry.
    "doubtful-file",
    # A rewrite compares sizes and vectors file by file.
    "data-file-size",
    "damaged-deletion-vector",
}
"""Kinds with which no verb refuses the whole table."""


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    """A store that the command line can open."""
    yield MemoryStore(Address.parse(ADDRESS))
    memory._NAMED.pop(ADDRESS.split("/")[2], None)


def damaged(store: MemoryStore, kind: str) -> None:
    seed = SEEDS[kind]
    configuration = {**ROW_IDS, **seed.configuration}
    seed.spoil(SoundTable(store, configuration=configuration, extras=not seed.bare))


def contents(store: MemoryStore) -> dict[str, bytes]:
    paths = [path for batch in store.list_tree() for path in batch["path"].to_pylist()]
    return {path: store.read(path) for path in paths}


def run(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(list(words))
    return status, out.getvalue(), err.getvalue()


def test_each_kind_is_either_refused_or_named_as_harmless() -> None:
    assert REFUSED.keys() | ELSEWHERE == set(FOUND)
    assert not REFUSED.keys() & ELSEWHERE
    assert {word.split()[0] for word in VERBS} >= WRITING


@pytest.mark.cases
@pytest.mark.parametrize("kind", list(REFUSED))
def test_no_verb_writes_to_a_table_that_it_knows_to_be_corrupt(
    kind: str, store: MemoryStore
) -> None:
    damaged(store, kind)
    before = contents(store)
    # A checkpoint, a checksum and a constraint are planned without the file actions.
    plans = WRITING if REFUSED[kind] == WRITING else REFUSED[kind] - {"checkpoint", "checksum"}
    runs = [(verb, ["--dry-run"]) for verb in plans]
    runs += [(verb, []) for verb in REFUSED[kind] - {"add-constraint"}]
    for verb, more in sorted(runs):
        flags = [flag for flag in VERBS[verb] if flag not in OMITTED]
        status, _, err = run(verb, ADDRESS, *flags, *more)
        assert (verb, status) == (verb, CORRUPT), err
        assert contents(store) == before, verb
        assert len(err.splitlines()) == 1 and "; " in err, verb


@pytest.mark.parametrize("verb", ["inspect", "files", "history", "health"])
@pytest.mark.parametrize("kind", ["repeated-action", "unknown-partition-column", "repeated-column"])
def test_reading_verbs_work_on_a_contradictory_table(
    kind: str, verb: str, store: MemoryStore
) -> None:
    damaged(store, kind)
    assert run(verb, ADDRESS)[0] == 0


def test_fsck_repairs_a_contradictory_table(store: MemoryStore) -> None:
    damaged(store, "unknown-partition-column")
    store.put("_delta_log/00000000000000000005.checkpoint.parquet", b"PAR1 damaged PAR1")
    store.delete("d e")
    flags = ("--repair", "--remove-missing-files", "--other-writers", "none", "--json")
    status, out, _ = run("fsck", ADDRESS, *flags)
    repairs = {repair["action"]: repair["status"] for repair in json.loads(out)["repairs"]}
    assert repairs == {"replace-checkpoint": "done", "remove-missing-files": "done"}
    assert status == CORRUPT


def test_a_later_commit_decides_between_repeated_actions(store: MemoryStore) -> None:
    table = SoundTable(store, configuration=ROW_IDS, extras=False)
    table.step(log.txn("app", 8), log.txn("app", 9))
    assert run("checkpoint", ADDRESS)[0] == CORRUPT
    table.step(log.txn("other", 1))
    assert run("checkpoint", ADDRESS)[0] == CORRUPT
    table.step(log.txn("app", 10))
    assert run("checkpoint", ADDRESS)[0] == 0


@pytest.mark.parametrize("verb", ["optimize", "cluster", "purge"])
def test_a_vector_that_marks_a_row_past_the_end_is_refused(verb: str, store: MemoryStore) -> None:
    table = SoundTable(store, configuration=ROW_IDS, extras=False)
    far = {**table.live("c"), "deletionVector": inline_vector([3, ROWS])}
    table.step(log.remove("b", deletionVector=table.vector), log.remove("d%20e"))
    table.step(log.remove("c"), {"add": far})
    before = contents(store)
    status, _, err = run(verb, ADDRESS, *VERBS[verb])
    assert (status, contents(store)) == (1, before)
    assert f"marks row {ROWS} of {ROWS}" in err and "fsck --deep" in err
    assert "backup" not in err
