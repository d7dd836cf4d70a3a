"""Vended credentials are renewed before they end, by one thread, and a failure is survived."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from delta_maintenance.address import Access, Address, CatalogKind, CatalogName
from delta_maintenance.catalogs import Catalog, CatalogTable, VendedCredentials
from delta_maintenance.catalogs.credentials import CredentialSource
from delta_maintenance.catalogs.reference import CatalogReference
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.errors import (
    CatalogError,
    CatalogUnavailableError,
    DeltaMaintenanceError,
    RefusedError,
)

_NAME = CatalogName(CatalogKind.UNITY, ("main", "s", "t"))
_ROOT = Address.parse("s3://lake/t")


class _World(Catalog):
    """A catalog, and the time."""

    kind = CatalogKind.UNITY

    def __init__(self, *, hours: float = 1) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.lifetime = timedelta(hours=hours)
        self.asked: list[Access] = []
        self.failure: DeltaMaintenanceError | None = None
        self.before: Callable[[], None] = lambda: None
        self.states_end = True

    def list(self, **_: object) -> object:  # type: ignore[override]
        raise NotImplementedError

    def resolve(self, name: CatalogName) -> CatalogTable:
        return CatalogTable(name=name, location=str(_ROOT), vends_credentials=True)

    def credentials(self, table: CatalogTable, access: Access) -> tuple[VendedCredentials, ...]:
        self.asked.append(access)
        self.before()
        if self.failure is not None:
            raise self.failure
        ends = self.now + self.lifetime if self.states_end else None
        return tuple(
            VendedCredentials(
                prefix=prefix,
                access=access,
                expires_at=ends,
                options={"number": str(len(self.asked)), "prefix": prefix},
            )
            for prefix in ("s3://lake", "s3://lake/t", "s3://lake/t/deep", "s3://lake/tt")
        )

    def close(self) -> None:
        pass

    def source(self, access: Access | None = None) -> CredentialSource:
        settings = CatalogSettings(kind=CatalogKind.UNITY)
        reference = CatalogReference(name=_NAME, settings=settings, access=access)
        return CredentialSource(reference, _ROOT, catalog=lambda: self, now=lambda: self.now)

    def pass_time(self, **time: float) -> None:
        self.now += timedelta(**time)


def _number(credentials: VendedCredentials) -> str:
    return credentials.options["number"]


def test_the_longest_prefix_that_contains_the_table_applies() -> None:
    assert _World().source().current(write=False).options["prefix"] == "s3://lake/t"


def test_credentials_are_renewed_five_minutes_before_they_end() -> None:
    world = _World()
    source = world.source()
    assert _number(source.current(write=False)) == "1"
    world.pass_time(minutes=54)
    assert _number(source.current(write=False)) == "1"
    world.pass_time(minutes=1)
    assert _number(source.current(write=False)) == "2"


def test_short_lived_credentials_are_renewed_in_their_last_quarter() -> None:
    world = _World(hours=1 / 60)
    source = world.source()
    source.current(write=False)
    world.pass_time(seconds=44)
    assert _number(source.current(write=False)) == "1"
    world.pass_time(seconds=1)
    assert _number(source.current(write=False)) == "2"


def test_writing_asks_once_for_more_and_keeps_it() -> None:
    world = _World()
    source = world.source()
    source.current(write=False)
    source.current(write=True)
    source.current(write=False)
    world.pass_time(hours=2)
    source.current(write=False)
    assert world.asked == [Access.READ, Access.READ_WRITE, Access.READ_WRITE]


def test_access_that_is_given_is_asked_for_at_once() -> None:
    world = _World()
    world.source(Access.READ_WRITE).current(write=False)
    assert world.asked == [Access.READ_WRITE]
    with pytest.raises(RefusedError, match="opened for reading only"):
        world.source(Access.READ).current(write=True)


def test_a_failed_renewal_keeps_the_old_credentials_until_they_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = _World()
    source = world.source()
    source.current(write=False)
    world.failure = CatalogUnavailableError("Unity Catalog does not answer")
    world.pass_time(minutes=56)
    for _ in range(100):
        assert _number(source.current(write=False)) == "1"
    assert len(world.asked) == 2
    assert len(caplog.records) == 1
    world.pass_time(minutes=5)
    with pytest.raises(CatalogUnavailableError) as caught:
        source.current(write=False)
    assert str(caught.value).startswith(
        "table uc://main.s.t: the credentials that end at 2026-01-01T01:00:00Z cannot be renewed: "
        "Unity Catalog does not answer; "
    )
    world.failure = None
    world.pass_time(seconds=6)
    assert _number(source.current(write=False)) == "4"


def test_a_refusal_of_writing_is_no_failed_renewal() -> None:
    world = _World()
    source = world.source()
    source.current(write=False)
    world.failure = CatalogError("denied", remedy="grant MODIFY")
    with pytest.raises(CatalogError) as caught:
        source.current(write=True)
    assert str(caught.value) == "table uc://main.s.t: denied; grant MODIFY"


def test_a_revoked_right_is_final() -> None:
    world = _World()
    source = world.source()
    source.current(write=False)
    world.failure = CatalogError("denied", remedy="grant SELECT")
    world.pass_time(hours=2)
    with pytest.raises(CatalogError, match=r"cannot be renewed: denied; grant SELECT") as caught:
        source.current(write=False)
    assert not caught.value.retryable


def test_one_thread_renews_while_the_others_continue() -> None:
    world = _World()
    source = world.source()
    source.current(write=False)
    world.pass_time(minutes=56)
    asking, go_on = threading.Event(), threading.Event()

    def block() -> None:
        asking.set()
        assert go_on.wait(30)

    world.before = block
    renewing = threading.Thread(target=source.current, kwargs={"write": False})
    renewing.start()
    assert asking.wait(30)
    assert {_number(source.current(write=False)) for _ in range(50)} == {"1"}
    go_on.set()
    renewing.join()
    assert _number(source.current(write=False)) == "2"
    assert len(world.asked) == 2


def test_without_credentials_all_threads_share_one_request() -> None:
    world = _World()
    source, found = world.source(), []
    threads = [
        threading.Thread(target=lambda: found.append(source.current(write=False)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    assert len(world.asked) == 1


def test_rejected_credentials_are_replaced_but_not_again_and_again() -> None:
    world = _World()
    world.states_end = False
    source = world.source()
    old = source.current(write=False)
    assert source.reject(old)
    new = source.current(write=False)
    assert _number(new) == "2"
    # Another thread learns of the same rejection later.
    assert source.reject(old)
    assert not source.reject(new)
    assert len(world.asked) == 2
    world.pass_time(seconds=5)
    assert source.reject(new)


def test_rejected_credentials_that_have_ended_are_replaced_at_once() -> None:
    world = _World(hours=1 / 3600)
    source = world.source()
    assert source.reject(source.current(write=False))
    new = source.current(write=False)
    world.pass_time(seconds=2)
    assert source.reject(new)


def test_credentials_that_have_ended_already_blame_the_clock() -> None:
    world = _World(hours=-1)
    with pytest.raises(CatalogError, match="ended at 2025-12-31T23:00:00Z; compare its clock"):
        world.source().current(write=False)


def test_a_catalog_without_credentials_for_the_prefix_says_what_to_do() -> None:
    world = _World()
    settings = CatalogSettings(kind=CatalogKind.UNITY)
    reference = CatalogReference(name=_NAME, settings=settings)
    elsewhere = Address.parse("s3://other/t")
    source = CredentialSource(reference, elsewhere, catalog=lambda: world, now=lambda: world.now)
    with pytest.raises(CatalogError, match="no credentials for s3://other/t; .*catalog_access"):
        source.current(write=False)
