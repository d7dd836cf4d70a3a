"""Guarded commits on a server of S3, which states tags of contents, beside a careless writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.storage import open_store
from delta_maintenance.storage.core import Store
from delta_maintenance.table.commit.outcome import Landed
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.evidence.overwritten_commits import states_of
from delta_maintenance.table.read import Table
from delta_maintenance.table.read.segment import list_log
from tests.support.emulators.s3_server import Application, Environ, S3Server, StartResponse
from tests.support.tables import actions as log
from tests.support.tables.table_builder import log_text

pytestmark = pytest.mark.server
COMMIT = f"t/_delta_log/{1:020d}.json"
FIRST = log_text([log.protocol(), log.metadata(), log.add("a")])


@pytest.fixture
def store(s3_server: S3Server) -> Iterator[Store]:
    s3_server.make_bucket("lake")
    s3_server.fill("lake", [f"t/_delta_log/{0:020d}.json"], FIRST)
    store = open_store("s3://lake/t", s3_server.storage_options)
    yield store
    store.close()


def append(store: Store) -> Transaction:
    writer = Writer(other_writers="spark", quiet=timedelta(0), sleep=lambda _: None)
    txn = Transaction(Table(store).snapshot(), "WRITE", writer=writer)
    txn.stage_adds([log.add("n")["add"]])
    return txn


def states(store: Store) -> dict[int, str]:
    listing = list_log(store)
    return {g.version: state for g, state in states_of(store, listing.guarded, listing.commits)}


def before_request(number: int, do: Callable[[], object]) -> Callable[[Application], Application]:
    """Calls a function once, before the request of this number."""
    left = [number]

    def wrap(application: Application) -> Application:
        def wrapped(environ: Environ, start_response: StartResponse) -> Any:
            left[0] -= 1
            if left[0] == -1:
                do()
            return application(environ, start_response)

        return wrapped

    return wrap


def test_tags_show_that_a_commit_is_sound_without_reading_it(
    store: Store, s3_server: S3Server
) -> None:
    assert isinstance(append(store).commit(), Landed)
    listing = list_log(store)
    s3_server.requests.clear()
    (state,) = (state for _, state in states_of(store, listing.guarded, listing.commits))
    assert state == "sound" and not s3_server.requests


def test_a_careless_put_before_any_request_is_noticed_if_it_overwrote_the_commit(
    store: Store, s3_server: S3Server
) -> None:
    spark = log_text([log.commit_info(engineInfo="Apache-Spark/4.2.0"), log.add("s")])
    number, overwritten = 0, 0
    while True:
        s3_server.make_bucket("lake")
        s3_server.fill("lake", [f"t/_delta_log/{0:020d}.json"], FIRST)
        txn = append(store)
        s3_server.requests.clear()
        was_there: list[bool] = []

        def put_carelessly(was_there: list[bool] = was_there) -> None:
            # The last request has not been carried out yet.
            done = s3_server.requests[:-1]
            was_there.append(any(line.startswith(f"PUT /lake/{COMMIT}") for line in done))
            s3_server.fill("lake", [COMMIT], spark)

        s3_server.intercept = before_request(number, put_carelessly)
        try:
            outcome = txn.commit()
            landed = isinstance(outcome, Landed) and outcome.version == 1
        except DeltaMaintenanceError:
            landed = False
        s3_server.intercept = None
        if not was_there:
            break
        state = states(store).get(1)
        # Before our put, its condition fails, and it becomes version 2; later, it is overwritten.
        assert landed is was_there[0]
        assert state == "overwritten" if landed else state in (None, "uncertain")
        number, overwritten = number + 1, overwritten + landed
    assert number > overwritten >= 2
