"""A catalog-managed table, and what clients can do to it."""

from __future__ import annotations

from collections.abc import Callable

from delta_maintenance.catalogs import ManagedState, RatifiedCommit
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from delta_maintenance.table.read.managed_log import ManagedStore
from tests.support.tables.actions import add, commit_info, features, metadata
from tests.support.tables.table_builder import TableBuilder, log_text

LOG = "_delta_log"
STAGED = f"{LOG}/_staged_commits"


class Managed:
    """A catalog-managed table, its catalog, and a model of both."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or MemoryStore()
        self.builder = TableBuilder(self.store)
        self.listed: list[RatifiedCommit] = []
        self.latest = 0
        self.published = 0
        self.reports: list[int] = []
        self.allowed: frozenset[str] = frozenset()
        self.meanwhile: list[Callable[[], None]] = []
        protocol = features(
            "catalogManaged",
            "deletionVectors",
            "vacuumProtocolCheck",
            writer_only=["inCommitTimestamp"],
        )
        configuration = {"delta.enableInCommitTimestamps": "true"}
        first = [info(0), protocol, metadata(configuration=configuration), add("f0")]
        self.builder.commit(first)

    def ratify(self) -> None:
        """The catalog accepts a commit, whose file is staged beside that of a loser."""
        self.latest += 1
        version = self.latest
        data = log_text([info(version), add(f"f{version}")])
        name = f"{version:020}.{version:08}-0000-4000-8000-000000000000.json"
        self.store.put(f"{STAGED}/{name}", data)
        loser = f"{version:020}.{version:08}-0000-4000-8000-0000000000ff.json"
        self.store.put(f"{STAGED}/{loser}", log_text([info(1), add("loser")]))
        self.listed.append(
            RatifiedCommit(
                version=version,
                file_name=name,
                size=len(data),
                modified_ms=version,
                timestamp_ms=1_000 + version,
            )
        )

    def publish(self) -> None:
        """The oldest commit that is not published gets its usual name."""
        if self.published < self.latest:
            self.published += 1
            actions = [info(self.published), add(f"f{self.published}")]
            self.store.put(commit_path(self.published), log_text(actions))
            self.builder.commits[self.published] = actions

    def report(self) -> None:
        """The catalog forgets the published commits."""
        self.listed = [each for each in self.listed if each.version > self.published]

    def take_report(self, table_id: str, version: int) -> None:
        """The catalog forgets the commits that a client reports as published."""
        self.reports.append(version)
        self.listed = [commit for commit in self.listed if commit.version > version]

    def forget(self) -> None:
        """A client reports commits as published that nobody has published."""
        self.listed = []

    def lose_staged_files(self) -> None:
        """Somebody deletes all staged files, or a client never wrote them."""
        for status in [*self.store.list_from(STAGED)]:
            self.store.delete(status.path)

    def has_every_commit(self) -> bool:
        """Whether each version up to the latest has the file that readers are to read."""
        staged = {status.path.rpartition("/")[2] for status in self.store.list_from(STAGED)}
        readable = {commit.version for commit in self.listed if commit.file_name in staged}
        return {*range(self.published + 1, self.latest + 1)} <= readable

    def clean(self) -> None:
        """The staged files of published commits are deleted, even of those not reported yet."""
        for status in [*self.store.list_from(f"{STAGED}")]:
            if int(status.path.rpartition("/")[2][:20]) <= self.published:
                self.store.delete(status.path)

    def checkpoint(self) -> None:
        """Another writer makes a checkpoint of a published version."""
        self.builder.checkpoint(self.published)

    def rogue(self) -> None:
        """A writer that ignores the catalog publishes a version above the latest."""
        self.store.put(commit_path(self.latest + 1), log_text([info(9), add("rogue")]))

    def state(self) -> ManagedState:
        answer = ManagedState(
            table_id="id",
            latest_version=self.latest,
            commits=tuple(self.listed),
            allowed_maintenance=self.allowed,
        )
        for action in self.meanwhile:
            action()
        self.meanwhile = []
        return answer

    def table(self) -> Table:
        return Table(self.managed_store())

    def managed_store(self) -> ManagedStore:
        return ManagedStore(self.store, self.state, self.take_report)


def info(version: int) -> dict[str, object]:
    return commit_info(inCommitTimestamp=1_000 + version, txnId=f"txn-{version}")


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def live_paths(table: Table, version: int | None = None) -> set[str]:
    return {*table.snapshot(version).live_files()["path"].to_pylist()}
