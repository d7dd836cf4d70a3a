"""Both interfaces of an HDFS that demands Kerberos, with tickets and tokens of a real KDC."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from delta_maintenance.address import Address
from delta_maintenance.cli.main import main
from delta_maintenance.errors import StorageAccessError, StorageError
from delta_maintenance.storage import Put, open_store
from delta_maintenance.storage.hdfs.native_client import NativeClient
from delta_maintenance.storage.hdfs.options import NativeOptions
from delta_maintenance.storage.hdfs.store import HdfsStore
from delta_maintenance.table.read import Table
from tests.support.servers.secured_hdfs import USER, SecuredHdfs
from tests.support.tables.actions import metadata, protocol
from tests.support.tables.table_builder import TableBuilder

NEXT = "_delta_log/00000000000000000001.json"


@dataclass(frozen=True, kw_only=True)
class Login:
    """How a client logs in."""

    scheme: str
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """The options for the command line."""
        return [f"--storage-option={name}={value}" for name, value in self.options.items()]


def by_protocol(hdfs: SecuredHdfs, **options: str) -> Login:
    return Login(scheme="hdfs", options={"config_dir": str(hdfs.folder / "conf"), **options})


def by_negotiation(**environment: str) -> Login:
    """SPNEGO, where its package is installed."""
    if importlib.util.find_spec("requests_gssapi") is None:
        # It is compiled for the Kerberos libraries, whose headers few machines have.
        pytest.skip("NO SPNEGO: no package requests-gssapi; make nightly NIGHTLY=kerberos has it")
    return Login(scheme="webhdfs", options={"kerberos": "true"}, environment=environment)


def with_environment(login: Login, **environment: str) -> Login:
    return Login(scheme=login.scheme, options=login.options, environment=environment)


def expired_cache_of(hdfs: SecuredHdfs) -> str:
    cache = hdfs.cache(seconds=1)
    time.sleep(1.5)
    return cache


def curl(hdfs: SecuredHdfs, operation: str, *, method: str = "GET") -> str:
    """The answer of the name node to a request of curl, which logs in by SPNEGO."""
    program = shutil.which("curl")
    about = subprocess.run([program, "--version"], capture_output=True) if program else None
    if program is None or about is None or b"SPNEGO" not in about.stdout:
        pytest.skip("NO DELEGATION TOKEN: there is no curl with SPNEGO")
    url = f"http://{hdfs.http}/webhdfs/v1/?op={operation}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5CCNAME", hdfs.cache())
        command = [program, "--silent", "--fail", "--negotiate", "--user", ":", "-X", method, url]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def token_of(hdfs: SecuredHdfs) -> str:
    return str(json.loads(curl(hdfs, "GETDELEGATIONTOKEN"))["Token"]["urlString"])


def token_file_of(hdfs: SecuredHdfs) -> str:
    file = hdfs.folder / "token.bin"
    if not file.exists():
        around = {"KRB5CCNAME": hdfs.cache()}
        hdfs.run_tool("DelegationTokenFetcher", str(file), environment=around)
    return str(file)


LOGINS: dict[str, Callable[[SecuredHdfs], Login]] = {
    "hdfs-ticket": lambda hdfs: with_environment(by_protocol(hdfs), KRB5CCNAME=hdfs.cache()),
    "hdfs-cache": lambda hdfs: by_protocol(
        hdfs, kerberos_principal=USER, kerberos_cache=hdfs.cache()
    ),
    "hdfs-keytab": lambda hdfs: by_protocol(
        hdfs, kerberos_principal=USER, kerberos_keytab=str(hdfs.user_keytab)
    ),
    "hdfs-token": lambda hdfs: with_environment(
        by_protocol(hdfs), HADOOP_TOKEN_FILE_LOCATION=token_file_of(hdfs)
    ),
    "webhdfs-ticket": lambda hdfs: by_negotiation(KRB5CCNAME=hdfs.cache()),
    "webhdfs-keytab": lambda hdfs: by_negotiation(
        KRB5_CLIENT_KTNAME=str(hdfs.user_keytab),
        # The library keeps the ticket that it gets there.
        KRB5CCNAME=str(hdfs.kdc.folder / "by-keytab.tickets"),
    ),
    "webhdfs-token": lambda hdfs: Login(
        scheme="webhdfs", environment={"HADOOP_DELEGATION_TOKEN": token_of(hdfs)}
    ),
}
STRANGERS: dict[str, tuple[Callable[[SecuredHdfs], Login], str]] = {
    "hdfs-none": (by_protocol, "NO_CRED: .*kinit"),
    "hdfs-expired": (
        lambda hdfs: with_environment(by_protocol(hdfs), KRB5CCNAME=expired_cache_of(hdfs)),
        "the Kerberos ticket has expired.*kinit",
    ),
    "hdfs-no-keytab": (
        lambda hdfs: by_protocol(hdfs, kerberos_principal=USER, kerberos_keytab="/not/there"),
        "NO_CRED: .*kinit.*keytab",
    ),
    "webhdfs-none": (lambda _: by_negotiation(), "HTTP 401.*kinit"),
    "webhdfs-expired": (
        lambda hdfs: by_negotiation(KRB5CCNAME=expired_cache_of(hdfs)),
        "HTTP 401.*kinit",
    ),
    "webhdfs-user": (lambda _: Login(scheme="webhdfs"), "HTTP 401.*kinit.*kerberos=true"),
}


def enter(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in login.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", LOGINS)
def test_a_table_is_read_and_committed_to(
    secured_hdfs: SecuredHdfs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    caplog.set_level("DEBUG")
    login = LOGINS[name](secured_hdfs)
    enter(login, monkeypatch)
    # Only this user may write there.
    root = secured_hdfs.address(f"/user/{USER}/{uuid.uuid4()}", scheme=login.scheme)
    store = open_store(root, login.options)
    TableBuilder(store).commit([protocol(), metadata()])
    arguments = [root, *login.arguments()]
    assert main(["set-properties", *arguments, "--set", "delta.appendOnly=true"]) == 0
    assert store.put_if_absent(NEXT, b"{}") is Put.EXISTS
    assert store.put_if_absent("large", bytes(3_000_000)) is Put.DONE
    assert store.read("large") == bytes(3_000_000)
    assert Table(store).snapshot().version == 1
    shown = caplog.text + "".join(capsys.readouterr())
    assert login.environment.get("HADOOP_DELEGATION_TOKEN", "no token") not in shown


@pytest.mark.parametrize("name", STRANGERS)
def test_without_a_valid_login_the_error_is_one_line_with_instructions(
    secured_hdfs: SecuredHdfs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    logs_in, said = STRANGERS[name]
    login = logs_in(secured_hdfs)
    enter(login, monkeypatch)
    root = secured_hdfs.address(f"/user/{USER}/{uuid.uuid4()}", scheme=login.scheme)
    store = open_store(root, login.options)
    for call in (lambda: store.put_if_absent(NEXT, b"{}"), lambda: store.read(NEXT)):
        with pytest.raises(StorageAccessError, match=said) as got:
            call()
        assert "\n" not in str(got.value)
    assert main(["inspect", root, *login.arguments()]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert root in line and re.search(said, line)


def test_a_token_that_was_cancelled_is_refused_and_not_shown(secured_hdfs: SecuredHdfs) -> None:
    token = token_of(secured_hdfs)
    curl(secured_hdfs, f"CANCELDELEGATIONTOKEN&token={token}", method="PUT")
    store = open_store(secured_hdfs.address(f"/user/{USER}"), {"token": token})
    with pytest.raises(StorageAccessError, match="give a new delegation token$") as got:
        store.put_if_absent(NEXT, b"{}")
    assert token not in str(got.value) and "\n" not in str(got.value)


def test_a_client_without_kerberos_settings_gets_an_error_with_the_missing_property(
    secured_hdfs: SecuredHdfs,
) -> None:
    root = secured_hdfs.address(f"/user/{USER}", scheme="hdfs")
    options = NativeOptions.parse(None, Address.parse(root))
    store = HdfsStore(Address.parse(root), client=NativeClient(options, patience=2, pauses=()))
    calls: list[Callable[[], object]] = [
        lambda: store.put_if_absent(NEXT, b"{}"),
        lambda: store.read(NEXT),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="set hadoop.security.authentication=kerberos$"):
            call()
