"""What a container on Azure keeps of deleted and replaced blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from delta_maintenance import clock
from delta_maintenance.address import Address
from delta_maintenance.errors import StorageError
from delta_maintenance.storage.azure.client import AzureClient
from delta_maintenance.storage.azure.options import AzureAddress, AzureOptions
from delta_maintenance.storage.azure.store import AzureStore
from tests.support.emulators.azure_server import ACCOUNT, ACCOUNT_KEY, AzureServer
from tests.support.servers.loopback import Reply, Request, serve

ROOT = "az://lake/w/t"
_TIME = "Thu, 26 Nov 2026 10:00:00 GMT"
_NEWER, _OLDER = "2026-11-26T10:00:00.0000000Z", "2026-11-20T10:00:00.0000000Z"


def blob(name: str, more: str = "", properties: str = "", size: int = 4) -> str:
    return (
        f"<Blob><Name>{name}</Name>{more}<Properties><Last-Modified>{_TIME}</Last-Modified>"
        f"<Content-Length>{size}</Content-Length><BlobType>BlockBlob</BlobType>{properties}"
        "</Properties></Blob>"
    )


def version(of: str, *, current: bool = False) -> str:
    """The elements of a blob in an account with versioning."""
    current_text = "<IsCurrentVersion>true</IsCurrentVersion>" if current else ""
    return f"<VersionId>{of}</VersionId>{current_text}"


Handler = Callable[[Request], Reply]
DELETED = "<Deleted>true</Deleted>"
LEFT = f"<DeletedTime>{_TIME}</DeletedTime><RemainingRetentionDays>6</RemainingRetentionDays>"


class Recorded:
    """Answers in the shape that the documentation of "List Blobs" describes."""

    def __init__(self, pages: Mapping[str, list[list[str]]], *, hierarchical: bool = False) -> None:
        """`pages` are the blobs of each page, by what is asked for: `include=…` or `showonly=…`."""
        self.pages = pages
        self.hierarchical = hierarchical
        self.asked: list[str] = []

    def __call__(self, request: Request) -> Reply:
        query = {name: each[0] for name, each in parse_qs(urlsplit(request.target).query).items()}
        self.asked.append(request.target)
        if query.get("restype") == "account":
            headers = {"x-ms-is-hns-enabled": str(self.hierarchical).lower()}
            return Reply(status=200, headers=headers)
        if query.get("comp") != "list":
            return Reply(status=200, body=f"{query}".encode())
        assert query["prefix"] == "w/t/"
        which = next(f"{name}={query[name]}" for name in ("showonly", "include") if name in query)
        pages, number = self.pages[which], int(query.get("marker", "0"))
        following = str(number + 1) if number + 1 < len(pages) else ""
        body = (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="lake">'
            f"<Blobs>{''.join(pages[number])}</Blobs><NextMarker>{following}</NextMarker>"
            "</EnumerationResults>"
        )
        return Reply(status=200, body=body.encode())


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Iterator[tuple[Recorded, AzureStore]]:
    """A store whose server gives recorded answers: the emulator has no versions and no soft delete.

    The parameter is the handler.
    """
    handler = request.param
    with serve(handler) as url:
        options = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY, "endpoint": f"{url}/x"}
        parsed = AzureOptions.parse(options, AzureAddress.of(Address.parse(ROOT)))
        client = AzureClient(parsed, "lake", sleep=lambda _: None)
        store = AzureStore(Address.parse(ROOT), client=client)
        yield handler, store
        store.close()


FLAT = Recorded(
    {
        "include=deleted,metadata,snapshots,versions": [
            [
                blob("w/t/a.parquet", version(_OLDER)),
                blob("w/t/a.parquet", version(_NEWER, current=True)),
                blob("w/t/b.parquet", f"<Snapshot>{_OLDER}</Snapshot>"),
                blob("w/t/b.parquet"),
            ],
            [
                blob("w/t/c.parquet", version(_NEWER)),
                blob("w/t/d.parquet", DELETED, LEFT),
                blob("w/t/e.parquet", DELETED + version(_OLDER), LEFT),
                blob("w/t/f", version(_OLDER), "<ResourceType>directory</ResourceType>"),
            ],
        ]
    }
)
TREE = Recorded(
    {
        "include=metadata,snapshots": [
            [blob("w/t/a.parquet"), blob("w/t/s", "<Snapshot>1</Snapshot>")]
        ],
        "showonly=deleted": [
            [
                blob("w/t/b.parquet", f"{DELETED}<DeletionId>133</DeletionId>", LEFT),
                blob("w/t/p=1", DELETED, f"<ResourceType>directory</ResourceType>{LEFT}", size=0),
            ]
        ],
    },
    hierarchical=True,
)


@pytest.mark.server
@pytest.mark.parametrize("recorded", [FLAT], indirect=True)
def test_versions_snapshots_and_soft_deleted_blobs_are_listed(
    recorded: tuple[Recorded, AzureStore],
) -> None:
    """Against recorded answers, because the emulator knows neither versions nor soft delete."""
    _, store = recorded
    found = list(store.old_versions.list())
    assert [(each.path, each.version_id, each.problem is None) for each in found] == [
        ("a.parquet", f"versionid={_OLDER}", True),
        ("b.parquet", f"snapshot={_OLDER}", True),
        ("c.parquet", f"versionid={_NEWER}", True),
        ("d.parquet", "deletionid=unknown", False),
        ("e.parquet", f"versionid={_OLDER}", False),
    ]
    assert [each.ends_ms is None for each in found] == [True, True, True, False, False]
    left = clock.instant(found[3].ends_ms or 0) - clock.now()
    assert timedelta(days=6) <= left <= timedelta(days=7)
    assert "does not tell" in found[0].ends_by
    assert store.old_versions.read(found[0], 0, 3) == f"{{'versionid': '{_OLDER}'}}".encode()
    assert store.old_versions.read(found[1], 0, 3) == f"{{'snapshot': '{_OLDER}'}}".encode()


@pytest.mark.server
@pytest.mark.parametrize("recorded", [TREE], indirect=True)
def test_an_account_with_folders_lists_deleted_ones_by_themselves(
    recorded: tuple[Recorded, AzureStore],
) -> None:
    """Against recorded answers, because the emulator has no hierarchical namespace."""
    _, store = recorded
    found = list(store.old_versions.list())
    # A deleted folder hides the files in it.
    assert [(each.path, each.version_id, each.problem is None) for each in found] == [
        ("s", "snapshot=1", True),
        ("b.parquet", "deletionid=133", False),
        ("p=1", "deletionid=unknown", False),
    ]


@pytest.mark.server
@pytest.mark.parametrize(
    "recorded",
    [lambda _: Reply(status=403, body=b"<Code>AuthorizationFailure</Code>")],
    indirect=True,
)
def test_a_refusal_is_an_error(recorded: tuple[Recorded, AzureStore]) -> None:
    with pytest.raises(StorageError, match="Storage Blob Data Reader"):
        list(recorded[1].old_versions.list())


def test_the_emulator_keeps_snapshots(azure_server: AzureServer, azure_container: str) -> None:
    root = Address.parse(f"az://{azure_container}/w/t")
    store = AzureStore(root, azure_server.storage_options)
    client = AzureClient(
        AzureOptions.parse(azure_server.storage_options, AzureAddress.of(root)), azure_container
    )
    store.put("x y", b"before")
    store.put("live", b"")
    assert list(store.old_versions.list()) == []
    client.call("PUT", "w/t/x y", query={"comp": "snapshot"})
    store.put("x y", b"after")
    (found,) = store.old_versions.list()
    assert (found.path, found.size, found.ends_ms) == ("x y", 6, None)
    assert store.old_versions.read(found, 0, 5) == b"before"
    client.close()
    store.close()


def _settings(policy: str, *, versions: bool = False, hierarchical: bool = False) -> Handler:
    """Answers in the shape of "Get Account Information" and "Get Blob Service Properties"."""
    names = version(_NEWER, current=True) if versions else ""
    log = Recorded({"include=versions": [[blob("w/t/_delta_log/0.json", names)]]})

    def handle(request: Request) -> Reply:
        asked = urlsplit(request.target)
        query = parse_qs(asked.query)
        if query.get("restype") == ["service"]:
            assert asked.path == "/x/"
            body = f"<StorageServiceProperties>{policy}</StorageServiceProperties>"
            return Reply(status=200, body=body.encode())
        if query.get("restype") == ["account"]:
            return Reply(status=200, headers={"x-ms-is-hns-enabled": str(hierarchical).lower()})
        assert not hierarchical and query["prefix"] == ["w/t/_delta_log/"]
        return log(replace(request, target=request.target.replace("_delta_log%2F", "")))

    return handle


_SOFT = "<DeleteRetentionPolicy><Enabled>true</Enabled><Days>14</Days></DeleteRetentionPolicy>"
_HARD = "<DeleteRetentionPolicy><Enabled>false</Enabled></DeleteRetentionPolicy>"


@pytest.mark.server
@pytest.mark.parametrize(
    ("recorded", "state", "days"),
    [
        (_settings(_HARD), "freed", None),
        (_settings(_SOFT), "later", 14),
        (_settings(_SOFT, hierarchical=True), "later", 14),
        (_settings(_HARD, versions=True), "unknown", None),
    ],
    indirect=["recorded"],
)
def test_the_settings_of_the_account_say_what_a_deletion_frees(
    recorded: tuple[Handler, AzureStore], state: str, days: int | None
) -> None:
    found = recorded[1].bytes_of_deleted()
    assert (found.state, found.after) == (state, None if days is None else timedelta(days=days))


def test_the_emulator_frees_deleted_blobs_at_once(
    azure_server: AzureServer, azure_container: str
) -> None:
    store = AzureStore(Address.parse(f"az://{azure_container}/w/t"), azure_server.storage_options)
    assert store.bytes_of_deleted().state == "freed"
    store.close()
