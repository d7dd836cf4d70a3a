"""Secrets in addresses and options of a command line come out again nowhere, whatever the verb.

Each verb gets addresses with a canary where users put secrets by mistake, and options with a canary
for stores that answer with what they were sent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import pytest

from delta_maintenance.cli.main import verbs
from delta_maintenance.storage.azure import AzureClient
from delta_maintenance.storage.gcs.client import GCSClient
from delta_maintenance.storage.s3 import S3Client
from tests.support.hostile.canaries import OPTIONS, SECRET, echo, hang_up
from tests.support.servers.loopback import Reply, Request, serve

Cli = Callable[..., "Outcome"]  # type: ignore[name-defined]  # noqa: F821  of this folder's fixture

ADDRESSES = {
    "s3": f"s3://AKIA1:{SECRET}@bucket/t",
    "s3 with a slash": f"s3a://AKIA1:ab/{SECRET}@bucket/t",
    "s3 without slashes": f"s3:AKIA1:{SECRET}@bucket/t",
    "gs": f"gs://user:{SECRET}@bucket/t",
    "azure": f"abfss://user:{SECRET}@acct.dfs.core.windows.net/t",
    "signature": f"az://data/t?sv=2021&sig={SECRET}",
    "https": f"https://acct.blob.core.windows.net/data/t?sv=2021&sig={SECRET}",
    "file": f"file://user:{SECRET}@host/t",
    "hdfs": f"hdfs://user:{SECRET}@nn:8020/t",
    "chained": f"simplecache::s3://AKIA1:{SECRET}@bucket/t",
    "no scheme": f"AKIA1:{SECRET}@bucket/t",
}
SPEC = ("--for", "livy", "--application", "s3://code/job.py", "--report", "s3://code/r.json")
WORDS: Mapping[str, Sequence[str]] = {
    "add-constraint": ("{}", "name", "a > 0"),
    "drop-feature": ("{}", "--feature", "deletionVectors"),
    "set-properties": ("{}", "--set", "delta.appendOnly=true"),
    "upgrade-protocol": ("{}", "--feature", "deletionVectors"),
    "spark-spec": ("checkpoint", "{}", *SPEC),
}
"""The arguments of verbs that need more than the address of a table."""
ELSEWHERE: Sequence[Sequence[str]] = (
    ("fsck", "TABLE", "--report", "{}"),
    ("fsck", "TABLE", "--deep", "--report", "{}"),
    ("vacuum", "TABLE", "--mode", "inventory", "--inventory", "{}"),
    ("vacuum", "TABLE", "--dry-run", "--ignore-missing-files", "--report", "{}"),
    ("compact-log", "TABLE", "--partial", "--engine", "spark", "--master", "{}"),
    ("fsck", "TABLE", "--deep", "--engine", "spark", "--spark-conf", "spark.eventLog.dir={}"),
    ("checkpoint", "TABLE", "{}"),
    ("{}", "TABLE"),
    ("spark-stage", "{}"),
    ("init", "{}"),
    ("spark-spec", "checkpoint", "s3://b/t", *SPEC[:-1], "{}"),
    ("spark-spec", "checkpoint", "s3://b/t", *SPEC, "--py-files", "{}"),
    ("spark-spec", "checkpoint", "s3://b/t", *SPEC, "--archives", "{}#environment"),
    ("spark-spec", "checkpoint", "s3://b/t", *SPEC, "--env", "WAREHOUSE={}"),
    ("spark-spec", "checkpoint", "s3://b/t", *SPEC, "--spark-conf", "spark.eventLog.dir={}"),
    ("spark-spec", "checkpoint", "s3://b/t", *SPEC, "--set", "queue={}"),
    ("spark-spec", "vacuum", "s3://b/t", *SPEC, "--options", '{{"inventory": "{}"}}'),
    ("run", "POLICY", "--state", "{}"),
    ("assess", "POLICY", "--state", "{}"),
)
"""Other arguments that are addresses."""


def sings(*texts: str) -> bool:
    shown = unquote("\n".join(texts))
    return any(part in shown for part in (SECRET, SECRET.rstrip("="), SECRET[8:]))


def test_a_leaked_canary_is_detected() -> None:
    assert sings("", f"x{SECRET}x") and sings(SECRET.replace("=", "%3D"))


@pytest.mark.parametrize("words", [("-v",), ("--json",)], ids=" ".join)
@pytest.mark.parametrize(
    "verb", [verb for verb in verbs() if verb not in ("init", "assess", "run")]
)
def test_no_verb_repeats_the_credentials_in_its_address(
    cli: Cli, caplog: pytest.LogCaptureFixture, verb: str, words: Sequence[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for kind, address in ADDRESSES.items():
        given = [word.format(address) for word in WORDS.get(verb, ("{}",))]
        outcome = cli(verb, *given, *words)
        assert outcome.status == 2, kind
        assert outcome.out == ""
        assert not sings(outcome.err, caplog.text), (kind, outcome.err)
        if "-v" not in words:
            assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("words", ELSEWHERE, ids=" ".join)
def test_no_other_address_of_a_command_line_is_repeated(
    cli: Cli, table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, words: Sequence[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    policy = tmp_path / "policy.yml"
    policy.write_text(json.dumps({"tables": [{"uri": table}]}))
    for kind, address in ADDRESSES.items():
        places = {"TABLE": table, "POLICY": str(policy)}
        outcome = cli(*(places.get(word, word.format(address)) for word in words), "-v")
        assert outcome.status == 2, (kind, outcome.err)
        assert not sings(outcome.out, outcome.err, caplog.text), (kind, outcome.err)


@pytest.mark.parametrize("verb", ["assess", "run"])
@pytest.mark.parametrize("key", ["uri", "pattern"])
def test_a_policy_with_credentials_in_an_address_is_refused_without_them(
    cli: Cli, tmp_path: Path, verb: str, key: str
) -> None:
    policy = tmp_path / "policy.yml"
    for address in ADDRESSES.values():
        policy.write_text(json.dumps({"tables": [{key: address}]}))
        outcome = cli(verb, policy, "-v")
        assert outcome.status == 2
        assert not sings(outcome.out, outcome.err)


@pytest.mark.server
@pytest.mark.parametrize("store", OPTIONS)
@pytest.mark.parametrize("server", [echo, hang_up])
def test_no_verb_repeats_what_a_store_answers(
    cli: Cli,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    server: Callable[[Request], Reply],
) -> None:
    for client in (S3Client, GCSClient, AzureClient):
        monkeypatch.setitem(client.__init__.__kwdefaults__, "pauses", ())
    caplog.set_level(logging.DEBUG)
    logging.getLogger("botocore").setLevel(logging.INFO)
    address, options = OPTIONS[store]
    with serve(server) as url:
        monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", url)
        given = [f"--storage-option={name}={value}" for name, value in options(url).items()]
        for verb in ("inspect", "spark-stage"):
            outcome = cli(verb, address, *given, "-v")
            assert outcome.status == 1
            assert not sings(outcome.out, outcome.err, caplog.text)
