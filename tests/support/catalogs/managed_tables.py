"""Catalog-managed tables of a served catalog."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from delta_maintenance.storage.local import LocalStore
from tests.support.servers.unity_delta import UnityServer, UnityTable
from tests.support.tables.managed import Managed


class ManagedTables:
    """The tables `main.s.t0`, `main.s.t1` and so on of a catalog, in folders of this machine."""

    def __init__(self, server: UnityServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.tables: list[Managed] = []

    def add(self) -> Managed:
        number = len(self.tables)
        root = str(self.folder / f"t{number}")
        managed = Managed(LocalStore(root))
        self.tables.append(managed)
        table_id = f"{number:08}-2222-3333-4444-555555555555"
        table = UnityTable(location=root, managed=True, table_id=table_id)
        self.server.add(f"main.s.t{number}", table)
        return managed

    def state(self) -> None:
        """Lets the catalog state what its tables are."""
        for number, managed in enumerate(self.tables):
            table = self.server.tables[f"main.s.t{number}"]
            table.latest, table.commits = managed.latest, _delta_api_commits(managed)

    def asked(self) -> Counter[str]:
        """The last parts of the requests since the last call."""
        requests = Counter(request.rpartition("/")[2] for request in self.server.requests)
        self.server.requests.clear()
        return requests


def _delta_api_commits(managed: Managed) -> list[dict[str, object]]:
    """The listed commits, with the names of the Delta API."""
    return [
        {
            "version": commit.version,
            "timestamp": commit.timestamp_ms,
            "file-name": commit.file_name,
            "file-size": commit.size,
            "file-modification-timestamp": commit.modified_ms,
        }
        for commit in managed.listed
    ]
