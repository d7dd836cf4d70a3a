"""One HDFS for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.hdfs_cluster import ClusterUnavailable, HdfsCluster, mini_cluster_jar, serve_hdfs

JARS = Path(__file__).parents[3] / ".tools" / "hadoop"
UNAVAILABLE = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def hdfs(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[HdfsCluster]:
    """A running cluster; where its jar can't be fetched, its tests are skipped loudly."""
    try:
        with serve_hdfs(tmp_path_factory.mktemp("hdfs"), mini_cluster_jar(JARS)) as cluster:
            yield cluster
    except ClusterUnavailable as reason:
        pytestconfig.stash[UNAVAILABLE] = str(reason)
        pytest.skip(f"NO HDFS: {reason}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says once, at the end, that no HDFS took part."""
    if (reason := config.stash.get(UNAVAILABLE, None)) is not None:
        terminalreporter.write_line(
            f"WARNING: every test against HDFS was skipped: {reason}", yellow=True, bold=True
        )
