"""Azurite, Microsoft's emulator of Azure Blob Storage, on the loopback interface, for tests.

It needs Node.js and the npm package `azurite`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from delta_maintenance.storage.azure import AzureClient
from delta_maintenance.storage.azure.options import AzureAddress, AzureOptions
from tests.support.servers.endings import end_process

ACCOUNT = "testing"
# Not a secret: the emulator is configured with it.
ACCOUNT_KEY = "dGVzdGluZy1rZXktb2YtYXp1cml0ZQ=="


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureServer:
    """A running emulator."""

    url: str

    @property
    def storage_options(self) -> dict[str, str]:
        """The options with which `open_store` reaches the server."""
        return {
            "account_name": ACCOUNT,
            "account_key": ACCOUNT_KEY,
            "endpoint": f"{self.url}/{ACCOUNT}",
        }

    def make_container(self, name: str) -> None:
        """Creates an empty container."""
        address = AzureAddress(container=name, prefix="")
        client = AzureClient(AzureOptions.parse(self.storage_options, address), name)
        client.call("PUT", query={"restype": "container"})
        client.close()


@contextmanager
def serve_azure(command: Sequence[str]) -> Iterator[AzureServer]:
    """Starts the emulator on a free port and stops it when the block ends.

    `command` runs the program `azurite-blob`.
    """
    process = subprocess.Popen(
        [
            *command,
            *("--blobHost", "127.0.0.1", "--blobPort", "0", "--blobKeepAliveTimeout", "600"),
            *("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"),
        ],
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line.strip())
                if _READY in line:
                    yield AzureServer(url=line.split(_READY)[1].strip())
                    return
            raise RuntimeError(f"the emulator ended: {' '.join(lines)}")
        finally:
            end_process(process)


_READY = "successfully listens on "
