"""Missing versions, and the run of versions up to one of them, as if each version was looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.protocol.delta_log.retention import start_of_run, version_gaps

VERSIONS = st.sets(st.integers(0, 12), max_size=12)


@given(VERSIONS, st.integers(0, 5))
def test_gaps_are_the_versions_that_are_missing_between_others(
    versions: set[int], first: int
) -> None:
    known = {version for version in versions if version >= first}
    gaps = version_gaps(versions, first=first)
    missing = [version for low, high in gaps for version in range(low, high + 1)]
    assert missing == sorted(set(range(min(known, default=0), max(known, default=0))) - known)
    assert all(low - 1 in known and high + 1 in known for low, high in gaps)


@given(VERSIONS, st.integers(0, 12))
def test_a_run_is_contiguous_and_as_long_as_possible(versions: set[int], last: int) -> None:
    start = start_of_run(versions, last)
    assert set(range(start, last + 1)) <= versions
    assert start - 1 not in versions
