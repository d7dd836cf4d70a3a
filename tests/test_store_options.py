"""The table of storage options: no secret counts as harmless, and every row is one of its store."""

import re
from dataclasses import fields
from typing import Any

import pytest

from delta_maintenance.address import StoreKind
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.storage.azure.options import AzureOptions
from delta_maintenance.storage.gcs.client import GCSOptions
from delta_maintenance.storage.hdfs.options import NativeOptions, WebHdfsOptions
from delta_maintenance.storage.s3 import S3Options
from delta_maintenance.store_options import OPTIONS, Exposure, parse_flag, spellings_exposed

READ_BY_THE_PARSER_ALONE = {"allow_http", "connection_string", "name_nodes", "token"}


def test_no_option_named_like_a_secret_may_appear_in_a_log() -> None:
    shown = spellings_exposed(Exposure.PUBLIC, Exposure.IDENTITY)
    named = {name for name in shown if re.search("secret|token|key$|sas|password|string", name)}
    # An access key ID is the public half of a key.
    assert named == {"key"}
    assert "kerberos_keytab" in shown, "the path of a file, not what it contains"


@pytest.mark.parametrize(
    ("store", "kinds"),
    [
        (StoreKind.S3, [S3Options]),
        (StoreKind.GCS, [GCSOptions]),
        (StoreKind.AZURE, [AzureOptions]),
        (StoreKind.HDFS, [NativeOptions, WebHdfsOptions]),
    ],
)
def test_a_value_that_a_store_hides_is_secret_or_an_identity(
    store: StoreKind, kinds: list[Any]
) -> None:
    parsed = {field.name: field.repr for kind in kinds for field in fields(kind)}
    rows = {option.name: option.exposure for option in OPTIONS if option.store is store}
    assert rows.keys() - READ_BY_THE_PARSER_ALONE <= parsed.keys()
    for name in rows.keys() & parsed.keys():
        assert parsed[name] or rows[name] is not Exposure.PUBLIC, name
        assert not parsed[name] or rows[name] is not Exposure.SECRET, name


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "yes", "on", "1", " true "])
def test_a_flag_is_read_in_every_spelling_and_nothing_else_is_false(text: str) -> None:
    assert parse_flag(text, "tls") is True
    opposite = {"true": "false", "yes": "no", "on": "off", "1": "0"}[text.strip().lower()]
    assert parse_flag(opposite.upper(), "tls") is False
    for other in ("", "tru", "2", "hunter2"):
        with pytest.raises(InvalidRequestError, match="option tls is neither") as caught:
            parse_flag(other, "tls")
        assert "hunter2" not in str(caught.value)
