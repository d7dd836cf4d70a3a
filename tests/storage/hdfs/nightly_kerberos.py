"""The contract of stores by Hadoop's own protocol, with Kerberos and encryption.

A part of `make nightly`: the contract is about what a store does once it has logged in, which
`make test` checks without Kerberos.
"""

from __future__ import annotations

import uuid

import pytest

from tests.storage.hdfs.contract import HdfsStoreContract
from tests.support.servers.secured_hdfs import USER, SecuredHdfs


class TestStore(HdfsStoreContract):
    @pytest.fixture
    def root(self, secured_hdfs: SecuredHdfs, monkeypatch: pytest.MonkeyPatch) -> str:
        self.environment = {
            **secured_hdfs.kdc.environment,
            "KRB5CCNAME": secured_hdfs.cache(),
            "HADOOP_CONF_DIR": str(secured_hdfs.folder / "conf"),
        }
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        return secured_hdfs.address(f"/user/{USER}/{uuid.uuid4()}/ware%20house/a b", scheme="hdfs")
