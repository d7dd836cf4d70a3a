"""File history compared with a replay in plain Python: sums, live files, rule violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delta_maintenance.protocol.actions.file_columns import (
    ADD_TYPES,
    COMMIT_VERSION,
    REMOVE_TYPES,
    logical_file_keys,
)
from delta_maintenance.protocol.delta_log.file_history import ABSENT, FileActions, FileHistory

ROOT = "/table"


@dataclass(frozen=True)
class Action:
    """An add or a remove of one of few files."""

    is_add: bool
    path: str
    vector: int | None = None
    size: int = 0

    @property
    def key(self) -> tuple[str, int | None]:
        return self.path, self.vector


actions = st.builds(
    Action,
    is_add=st.booleans(),
    path=st.sampled_from(["a", "b", "c"]),
    vector=st.sampled_from([None, 1, 2]),
    size=st.integers(0, 2**40),
)
commits = st.lists(st.lists(actions, max_size=5), min_size=1, max_size=6)


def _vector(number: int | None) -> dict[str, object] | None:
    if number is None:
        return None
    return {
        "storageType": "u",
        "pathOrInlineDv": f"v{number}",
        "offset": 1,
        "sizeInBytes": 4,
        "cardinality": number * 10,
    }


def _batch(found: Sequence[tuple[int, Action]], *, is_add: bool) -> pa.Table:
    rows = [(version, action) for version, action in found if action.is_add is is_add]
    types = ADD_TYPES if is_add else REMOVE_TYPES
    columns = {
        "path": pa.array([a.path for _, a in rows], pa.string()),
        "deletionVector": pa.array([_vector(a.vector) for _, a in rows], types["deletionVector"]),
        "size": pa.array([a.size for _, a in rows], pa.int64()),
        COMMIT_VERSION: pa.array([version for version, _ in rows], pa.int64()),
    }
    return pa.table(columns)


def _columns(found: Sequence[tuple[int, Action]]) -> FileActions:
    return FileActions(adds=_batch(found, is_add=True), removes=_batch(found, is_add=False))


def _replayed(
    state: dict[tuple[str, int | None], Action], commit: Sequence[Action]
) -> dict[tuple[str, int | None], Action]:
    """The newest action of each file; an add wins over a remove, and the last of several adds."""
    state = dict(state)
    for action in [a for a in commit if not a.is_add] + [a for a in commit if a.is_add]:
        state[action.key] = action
    return state


def _histories(
    log: Sequence[Sequence[Action]], base: int
) -> tuple[FileHistory, list[dict[tuple[str, int | None], Action]]]:
    """The history of a log on a checkpoint of version `base` (-1 for none), and all states."""
    states, state = [], dict[tuple[str, int | None], Action]()
    for commit in log:
        state = _replayed(state, commit)
        states.append(state)
    tail = [(v, a) for v, commit in enumerate(log) for a in commit if v > base]
    stands = None
    if base >= 0:
        whole = _columns([(base, action) for action in states[base].values()])
        stands = FileActions(
            adds=whole.adds.drop_columns([COMMIT_VERSION]),
            removes=whole.removes.drop_columns([COMMIT_VERSION]),
            version=base,
        )
    pieces = [_columns(tail[:3]), _columns(tail[3:])]
    last = len(log) - 1
    return FileHistory(stands, pieces, first=max(base, 0), last=last), states


@given(log=commits, base=st.integers(-1, 4))
@example(log=[[]], base=-1)
def test_sums_equal_those_of_a_replay(log: list[list[Action]], base: int) -> None:
    base = min(base, len(log) - 1)
    history, states = _histories(log, base)

    totals = history.totals()

    for version in range(totals.first, len(log)):
        live = [action for action in states[version].values() if action.is_add]
        at = version - totals.first
        assert totals.num_files[at] == len(live)
        assert totals.total_size[at] == sum(action.size for action in live)
        assert totals.num_deletion_vectors[at] == sum(a.vector is not None for a in live)
        assert totals.num_deleted_rows[at] == sum((a.vector or 0) * 10 for a in live)


@given(log=commits, base=st.integers(-1, 4))
def test_files_equal_those_of_a_replay(log: list[list[Action]], base: int) -> None:
    base = min(base, len(log) - 1)
    history, states = _histories(log, base)

    for version in range(history.first, len(log)):
        rows, live = history.active_rows(version)
        for action in states[version].values():
            batch = _batch([(0, action)], is_add=action.is_add)
            (code,) = history.codes_of(logical_file_keys(batch))
            assert rows[code] != ABSENT
            assert live[code] == action.is_add
            assert history.path(int(code)) == action.path
            assert history.field("size", rows[[code]])[0] == action.size
            marked = ABSENT if action.vector is None else action.vector * 10
            assert history.cardinality(rows[[code]])[0] == marked
        assert int((rows != ABSENT).sum()) == len(states[version])


def _naive_breaches(log: Sequence[Sequence[Action]], base: int) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    state: dict[tuple[str, int | None], Action] = {}
    for version, commit in enumerate(log):
        after = _replayed(state, commit)
        if version > base:
            for is_add in (True, False):
                paths = Counter(action.path for action in commit if action.is_add is is_add)
                if repeats := sum(count - 1 for count in paths.values()):
                    found["repeated-file", version] += repeats
            adds = {action.key for action in commit if action.is_add}
            removes = Counter(action.key for action in commit if not action.is_add)
            if both := len(adds & removes.keys()):
                found["added-and-removed", version] = both
            live = {key for key, action in state.items() if action.is_add}
            # The second of two removes has nothing left to remove.
            if absent := sum(n - (key in live) for key, n in removes.items()):
                found["remove-of-absent-file", version] = absent
        state = after
    return found


@given(log=commits, base=st.integers(-1, 4))
def test_rule_violations_are_counted(log: list[list[Action]], base: int) -> None:
    base = min(base, len(log) - 1)
    history, _ = _histories(log, base)

    found: Counter[tuple[str, int]] = Counter()
    for breach in history.violations(root=ROOT):
        if breach.rule != "two-live-vectors":
            found[breach.rule, breach.version] += breach.count

    assert found == _naive_breaches(log, base)


@given(log=commits)
def test_paths_that_become_live_twice_are_found(log: list[list[Action]]) -> None:
    # At most one action per file and commit, because other rules find everything else.
    log = [list({action.key: action for action in commit}.values()) for commit in log]
    history, states = _histories(log, -1)

    found = {b.version for b in history.violations(root=ROOT) if b.rule == "two-live-vectors"}

    before: Counter[str] = Counter()
    for version, state in enumerate(states):
        live = Counter(action.path for action in state.values() if action.is_add)
        if any(live[path] > max(1, before[path]) for path in live):
            assert version in found
        if version in found:
            assert any(count > 1 for count in live.values())
        before = live


def test_a_second_vector_is_reported_where_it_was_added() -> None:
    """To add either of the two files again changes nothing."""
    log = [[Action(True, "a")], [Action(True, "a", vector=1)], [Action(True, "a")]]
    history, _ = _histories(log, -1)

    [breach] = history.violations(root=ROOT)

    assert (breach.rule, breach.version, breach.count) == ("two-live-vectors", 1, 1)


def test_two_spellings_of_a_path_are_one_path() -> None:
    twice = [Action(True, "x%20y"), Action(True, f"{ROOT}/x y"), Action(True, "z")]
    history, _ = _histories([twice], -1)

    (breach,) = history.violations(root=ROOT)

    assert (breach.rule, breach.count) == ("repeated-file", 1)


def test_unknown_files_have_no_code() -> None:
    history, _ = _histories([[Action(True, "a")]], -1)
    keys = logical_file_keys(_batch([(0, Action(True, "b")), (0, Action(True, "a"))], is_add=True))

    codes = history.codes_of(keys)

    assert codes[0] == ABSENT
    assert codes[1] >= 0


@pytest.mark.parametrize("rows", [200_000])
def test_large_histories_are_fast(rows: int) -> None:
    adds = pa.table(
        {
            "path": [f"f-{number}" for number in range(rows)],
            "size": np.ones(rows, np.int64),
            COMMIT_VERSION: np.arange(rows) // 1000,
        }
    )
    removes = pa.table({"path": pa.array([], pa.string())}).append_column(
        COMMIT_VERSION, pa.array([], pa.int64())
    )
    history = FileHistory(
        None, [FileActions(adds=adds, removes=removes)], first=0, last=rows // 1000 - 1
    )

    assert history.totals().num_files.tolist() == list(range(1000, rows + 1, 1000))
    assert not list(history.violations(root=ROOT))
