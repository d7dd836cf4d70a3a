"""Opens the client that storage options describe."""

from __future__ import annotations

from collections.abc import Sequence

from delta_maintenance.storage.core.request_failure import PAUSES
from delta_maintenance.storage.hdfs.client import HdfsClient
from delta_maintenance.storage.hdfs.native_options import NativeOptions
from delta_maintenance.storage.hdfs.webhdfs_options import WebHdfsOptions


def open_client(
    options: NativeOptions | WebHdfsOptions, *, pauses: Sequence[float] = PAUSES
) -> HdfsClient:
    """Opens a client for the name node's RPC protocol, or for its REST interface.

    `InvalidRequestError` if a package is missing. `pauses` are the seconds to wait before each
    further attempt of a call.
    """
    # Imported on demand, because they need different packages.
    if isinstance(options, NativeOptions):
        from delta_maintenance.storage.hdfs.native_client import NativeClient

        return NativeClient(options, pauses=pauses)
    from delta_maintenance.storage.hdfs.webhdfs_client import WebHdfsClient

    return WebHdfsClient(options, pauses=pauses)
