"""Files whose removal failed: found by rewrites in every log that still has the commits."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delta_maintenance.operations.rewriting.live_columns import live_columns
from delta_maintenance.table.evidence.doubled_files import DoubledFileSearch
from delta_maintenance.table.read import Snapshot
from tests.support.operations.fsck_findings import look
from tests.support.suite.play import examples
from tests.support.tables.doubled_tables import STEPS, DoubledLog, play

steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 59)), max_size=14)


def keys_of(snapshot: Snapshot) -> list[str]:
    files = live_columns(snapshot)
    rows = files.doubled.nonzero()[0].tolist()
    return sorted(
        path if vector is None else f"{vector}\0{path}"
        for path, vector in zip(
            files.path.take(pa.array(rows, pa.int64())).to_pylist(),
            files.vector.take(pa.array(rows, pa.int64())).to_pylist(),
            strict=True,
        )
    )


def expected(made: DoubledLog) -> list[str]:
    return sorted(path if vector is None else f"{vector}\0{path}" for path, vector in made.doubled)


@settings(max_examples=examples(150))
@given(steps=steps)
@example(steps=[("append", 0), ("miss", 0)])
@example(steps=[("append", 0), ("miss", 0), ("again", 0)])
@example(steps=[("append", 0), ("miss", 0), ("statistics", 0), ("checkpoint", 0)])
@example(steps=[("append", 0), ("delete", 0), ("miss", 1), ("checkpoint", 0)])
def test_rewrites_and_fsck_find_exactly_the_files_that_should_not_be_live(
    steps: list[tuple[str, int]],
) -> None:
    made = play(steps)
    snapshot = made.builder.open().snapshot()

    assert keys_of(snapshot) == expected(made)
    search = DoubledFileSearch(snapshot)
    for _ in search.watch(snapshot.log.scan(fields={"add": (), "remove": ()})):
        pass
    assert sorted(search.keys().to_pylist()) == expected(made)
    found = look(made.builder).findings.table()
    rows = [row for row in found.to_pylist() if row["kind"] == "doubled-file"]
    assert sorted((row["path"], row["version"]) for row in rows) == sorted(
        (path, version) for (path, _), version in made.doubled.items()
    )
