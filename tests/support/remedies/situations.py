"""Refusals that other processes, stores, clocks, catalogs and jobs cause, each with its remedy.

A situation gives two calls: the attempt, which is refused, and what somebody does about it. The
attempt then works. Nothing outside of this process is needed, except a server that the suite fakes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from delta_maintenance import clock
from delta_maintenance.address import Access, Address, CatalogKind, CatalogName
from delta_maintenance.catalogs import CredentialSource
from delta_maintenance.catalogs.catalog import (
    Catalog,
    CatalogTable,
    VendedCredentials,
    open_catalog,
)
from delta_maintenance.catalogs.reference import CatalogReference
from delta_maintenance.catalogs.settings import CatalogSettings
from delta_maintenance.operations import drop_feature, set_properties, vacuum
from delta_maintenance.operations.core import RunContext, find
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.operations.set_properties import SetPropertiesOptions
from delta_maintenance.operations.vacuum import VacuumOptions
from delta_maintenance.policies import Leases
from delta_maintenance.storage import MemoryStore, open_store
from delta_maintenance.storage.s3 import S3Client, S3Options, S3Store
from delta_maintenance.table.read import Table
from tests.support.catalogs.catalog_server import CatalogServer, Entry, Refusal
from tests.support.catalogs.unity_server import UnityServer
from tests.support.emulators.s3_server import S3Server
from tests.support.faults.s3_faults import DENIED, LOST_503, Faults, answer, without
from tests.support.remedies.refusals import Made
from tests.support.servers.loopback import Reply
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder, log_text

Attempt = Callable[[], object]
Mend = Callable[[], object]
Scene = tuple[Attempt, Mend]
"""The refused attempt, and what helps."""


@dataclass(frozen=True)
class Stage:
    """The folder and the server of a situation."""

    folder: Path
    stack: ExitStack
    """Ends what the situation has begun."""
    s3: Callable[[], S3Server]


@dataclass(frozen=True)
class Situation:
    """A cause of a refusal, and what is done about it."""

    problem: str
    """Words of the message, as a regular expression."""
    remedy: str
    """What is done, in words."""
    begin: Callable[[Stage], Scene]


# Plans.


def _planned_vacuum(
    disturb: Callable[[TableBuilder], object], *, hours: float = 0
) -> Callable[[Stage], Scene]:
    def begin(stage: Stage) -> Scene:
        table, started = Made().build(stage.folder / "table"), clock.now()
        # A plan that deletes nothing has no age.
        unneeded = stage.folder / "table" / "unneeded.parquet"
        unneeded.touch()
        month_ago = (started - timedelta(days=30)).timestamp()
        os.utime(unneeded, (month_ago, month_ago))
        times = iter((started - timedelta(hours=hours), started))
        plans: list[Any] = []

        def plan() -> None:
            context = RunContext.at(next(times))
            plans[:] = [vacuum.plan(table.open().snapshot(), VacuumOptions(), context)]

        plan()
        disturb(table)
        return lambda: vacuum.apply(table.open(), plans[0], RunContext.at(started)), plan

    return begin


def _replaced_table(stage: Stage) -> Scene:
    table = Made().build(stage.folder / "table")
    plans: list[set_properties.SetPropertiesPlan] = []

    def plan() -> None:
        options = SetPropertiesOptions(properties={"a": "b"})
        plans[:] = [set_properties.plan(table.open().snapshot(), options)]

    plan()
    table.commit([log.protocol(), log.metadata(id="another")], version=0)
    return lambda: set_properties.apply(table.open(), plans[0]), plan


def _changed_protocol(stage: Stage) -> Scene:
    table = Made(readers=("deletionVectors", "vacuumProtocolCheck")).build(stage.folder / "table")
    plans: list[Any] = []

    def plan() -> None:
        options = DropFeatureOptions(feature="vacuumProtocolCheck")
        plans[:] = [drop_feature.plan(table.open().snapshot(), options)]

    plan()
    more = log.features("deletionVectors", "vacuumProtocolCheck", "timestampNtz")
    table.commit([more])
    return lambda: drop_feature.apply(table.open(), plans[0]), plan


def _report(name: str) -> Callable[[Stage], Scene]:
    def begin(stage: Stage) -> Scene:
        table = Made().build(stage.folder / "table")
        (stage.folder / "old.parquet").write_bytes(b"")
        names = [name]

        def attempt() -> None:
            context = RunContext(report=str(stage.folder / names[0]))
            find("vacuum").prepare(table.open(), VacuumOptions(), context)

        def mend() -> None:
            names[0] = "new.parquet"

        return attempt, mend

    return begin


# Stores.


def _set_property(table: Table, **more: Any) -> object:
    options = SetPropertiesOptions(properties={"a": str(uuid4())}, **more)
    return set_properties.apply(table, set_properties.plan(table.snapshot(), options))


def _read_only(stage: Stage) -> Scene:
    Made().build(stage.folder / "table")
    addresses = [f"simplecache::file://{stage.folder}/table", str(stage.folder / "table")]
    return lambda: _set_property(Table(open_store(addresses[0]))), lambda: addresses.pop(0)


# Other processes.


def _busy(stage: Stage) -> Scene:
    store = MemoryStore()
    leases = Leases(store)
    working = stage.stack.enter_context(ExitStack())
    working.enter_context(leases.held("orders", holder="one"))

    def attempt() -> None:
        with Leases(store).held("orders", holder="another"):
            pass

    return attempt, working.close


# Catalogs.


def _catalog(
    break_it: Callable[[CatalogServer, dict[str, str]], object],
    mend: Callable[[CatalogServer, dict[str, str]], object],
) -> Callable[[Stage], Scene]:
    def begin(stage: Stage) -> Scene:
        server = stage.stack.enter_context(UnityServer().running())
        name = server.add("prod", "sales", "orders")
        options: dict[str, str] = {}
        break_it(server, options)

        def attempt() -> None:
            with open_catalog(server.settings(**options)) as catalog:
                catalog.resolve(name)

        return attempt, lambda: mend(server, options)

    return begin


ORDERS = ("prod", "sales", "orders")


def _enter(entry: Entry) -> Callable[[CatalogServer, dict[str, str]], object]:
    return lambda server, _: server.add(*ORDERS, entry=entry)


def _refuse(status: int, code: str) -> Callable[[CatalogServer, dict[str, str]], object]:
    return lambda server, _: server.failing.update({ORDERS: Refusal(status, code, "no")})


def _answer(status: int, body: bytes) -> Callable[[CatalogServer, dict[str, str]], object]:
    def intercept(server: CatalogServer, _: dict[str, str]) -> None:
        server.intercept = lambda *_: Reply(status=status, body=body)

    return intercept


def _recover(server: CatalogServer, _: dict[str, str]) -> None:
    server.intercept = None
    server.failing.clear()
    server.add(*ORDERS, entry=Entry(location="s3://bucket/orders"))


def _require_token(server: CatalogServer, options: dict[str, str]) -> None:
    server.token = "right"
    options["token"] = "wrong"


def _give_token(server: CatalogServer, options: dict[str, str]) -> None:
    options["token"] = "right"


def _forget_token(server: CatalogServer, options: dict[str, str]) -> None:
    server.token = "right"
    options["token"] = ""


class _Vending(Catalog):
    """A catalog that vends credentials for one table."""

    kind = CatalogKind.UNITY

    def __init__(self) -> None:
        self.prefix, self.location = "s3://lake/t", "s3://lake/t"
        self.access = Access.READ_WRITE
        self.life = timedelta(hours=1)

    def list(self, **_: object) -> object:  # type: ignore[override]  # nothing calls it
        raise NotImplementedError

    def resolve(self, name: CatalogName) -> CatalogTable:
        return CatalogTable(name=name, location=self.location, vends_credentials=True)

    def credentials(self, table: CatalogTable, access: Access) -> tuple[VendedCredentials, ...]:
        ends = clock.now() + self.life
        return (
            VendedCredentials(
                prefix=self.prefix, access=self.access, expires_at=ends, options={"key": "x"}
            ),
        )

    def close(self) -> None:
        pass


def _vending(
    break_it: Mapping[str, object], *, access: Access | None = None
) -> Callable[[Stage], Scene]:
    """Breaks attributes of the catalog, and sets them right. With `access`, that of the options."""

    def begin(stage: Stage) -> Scene:
        name = CatalogName(CatalogKind.UNITY, ORDERS)
        world, allowed = _Vending(), [access]
        for attribute, value in break_it.items():
            setattr(world, attribute, value)

        root = Address.parse("s3://lake/t")

        def attempt() -> None:
            reference = CatalogReference(
                name=name,
                location=root,
                settings=CatalogSettings(kind=CatalogKind.UNITY),
                access=allowed[0],
            )
            CredentialSource(reference, root, catalog=lambda: world).current(write=True)

        def mend() -> None:
            world.__init__()  # type: ignore[misc]  # as new
            allowed[0] = None

        return attempt, mend

    return begin


# S3.


def _s3_table(stage: Stage) -> tuple[S3Server, Table]:
    server = stage.s3()
    bucket = f"bucket-{uuid4()}"
    server.make_bucket(bucket)
    first = log_text([log.protocol(), log.metadata()])
    server.fill(bucket, [f"t/_delta_log/{0:020}.json"], first)
    client = S3Client(S3Options.parse(server.storage_options), sleep=lambda _: None)
    store = S3Store(Address.parse(f"s3://{bucket}/t"), client=client)
    stage.stack.callback(store.close)
    return server, Table(store)


def _s3_writers(before: str | None, after: str) -> Callable[[Stage], Scene]:
    def begin(stage: Stage) -> Scene:
        _, table = _s3_table(stage)
        writers: list[Any] = [before]

        def mend() -> None:
            writers[0] = after

        return lambda: _set_property(table, other_writers=writers[0]), mend

    return begin


def _s3_dynamo(stage: Stage) -> Scene:
    _, table = _s3_table(stage)
    trace = "_delta_log/.tmp/0.json"
    table.store.put(trace, b"{}")
    return (lambda: _set_property(table, other_writers="none"), lambda: table.store.delete(trace))


def _s3_fault(*faults: Any, request: str = "GET") -> Callable[[Stage], Scene]:
    def begin(stage: Stage) -> Scene:
        server, table = _s3_table(stage)
        Faults(server).on(request, *faults, forever=True)

        def mend() -> None:
            server.intercept = None

        return lambda: _set_property(table, other_writers="none"), mend

    return begin


def _s3_without_conditions(stage: Stage) -> Scene:
    server, table = _s3_table(stage)
    server.intercept = without("HTTP_IF_NONE_MATCH")

    def mend() -> None:
        server.intercept = None

    return lambda: _set_property(table, other_writers="none"), mend


def _s3_bucket(stage: Stage) -> Scene:
    server, table = _s3_table(stage)
    name = f"bucket-{uuid4()}"
    address = Address.parse(f"s3://{name}/t")
    store = S3Store(address, server.storage_options)
    stage.stack.callback(store.close)
    return lambda: list(store.list_from("_delta_log")), lambda: server.make_bucket(name)


SITUATIONS: Mapping[str, Situation] = {
    "old-plan": Situation(
        "plan again: a plan is valid for an hour",
        "the vacuum is planned again",
        _planned_vacuum(lambda table: None, hours=2),
    ),
    "plan-from-the-future": Situation(
        "from now",
        "the clock is corrected, and the vacuum is planned again",
        _planned_vacuum(lambda table: None, hours=-2),
    ),
    "replaced-table": Situation(
        "the table at this address was replaced after the plan",
        "the change is planned again",
        _replaced_table,
    ),
    "changed-protocol": Situation(
        "the protocol of the table has changed since the plan",
        "the change is planned again",
        _changed_protocol,
    ),
    "report-in-the-table": Situation(
        "the report would be inside the table",
        "the report is written elsewhere",
        _report("table/report.parquet"),
    ),
    "report-that-exists": Situation(
        "a file with this name already exists", "another name is chosen", _report("old.parquet")
    ),
    "read-only-file-system": Situation(
        "can only be read, because fsspec has no call",
        "the table is opened at an address of a store that commits",
        _read_only,
    ),
    "busy": Situation("one is working on orders", "the other process ends", _busy),
    "wrong-token": Situation(
        "rejects the credentials, for",
        "the token is renewed",
        _catalog(_require_token, _give_token),
    ),
    "no-token": Situation(
        "requires credentials, for", "a token is given", _catalog(_forget_token, _give_token)
    ),
    "no-right": Situation(
        "denies access to", "the right is granted", _catalog(_refuse(403, "DENIED"), _recover)
    ),
    "unknown-name": Situation(
        "does not know", "the name is corrected", _catalog(_refuse(404, "NOT_FOUND"), _recover)
    ),
    "no-location": Situation(
        "location of", "the entry is corrected", _catalog(_enter(Entry()), _recover)
    ),
    "unusable-location": Situation(
        "states an unusable location of",
        "the entry is corrected",
        _catalog(_enter(Entry(location="relative/path")), _recover),
    ),
    "other-format": Situation(
        "is no Delta table",
        "the name of a Delta table is given",
        _catalog(_enter(Entry(location="s3://bucket/x", format="CSV")), _recover),
    ),
    "no-catalog": Situation(
        "does not answer like a catalog, for",
        "the address is corrected",
        _catalog(_answer(200, b"<html>"), _recover),
    ),
    "catalog-down": Situation(
        "run again", "the verb is run again", _catalog(_answer(503, b""), _recover)
    ),
    "no-credentials": Situation(
        "the catalog vends no credentials for",
        "the catalog is allowed to vend them",
        _vending({"prefix": "s3://other"}),
    ),
    "ended-credentials": Situation(
        "the catalog vends credentials that ended at",
        "the clocks are compared, and the wrong one is corrected",
        _vending({"life": timedelta(hours=-1)}),
    ),
    "credentials-for-reading": Situation(
        "for reading only", "the right to write is granted", _vending({"access": Access.READ})
    ),
    "moved-table": Situation(
        "the catalog now states another location than",
        "the verb is run again after the move",
        _vending({"location": "s3://lake/moved"}),
    ),
    "opened-for-reading": Situation(
        "the table was opened for reading only",
        "the storage option is omitted",
        _vending({}, access=Access.READ),
    ),
    "unspecified-writers": Situation(
        "the other writers of this table on S3 are not specified",
        "other_writers is given",
        _s3_writers(None, "none"),
    ),
    "spark-on-s3": Situation(
        "Delta Spark writes this table on S3",
        "Delta Spark has the log store, as in tests/oracle/log_store, and other_writers says so",
        _s3_writers("spark", "conditional_put"),
    ),
    "dynamodb": Situation(
        "commits of this table go through DynamoDB",
        "the folder is removed once no writer uses DynamoDB",
        _s3_dynamo,
    ),
    "no-bucket": Situation("has no bucket", "the bucket is created", _s3_bucket),
    "denied-by-the-store": Situation(
        "check credentials and address, and grant", "the right is granted", _s3_fault(DENIED)
    ),
    "store-down": Situation(
        "run again when the store is available", "the verb is run again", _s3_fault(LOST_503)
    ),
    "archived-file": Situation(
        "the file is archived, and",
        "the file is retrieved",
        _s3_fault(answer(403, "InvalidObjectState")),
    ),
    "no-conditional-put": Situation(
        "the store has no conditional put",
        "a store is used that honours the condition",
        _s3_without_conditions,
    ),
}
"""By what causes them."""
