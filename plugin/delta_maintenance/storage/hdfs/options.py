"""The storage options of HDFS, for both interfaces."""

from __future__ import annotations

from collections.abc import Mapping

from delta_maintenance.address import Address
from delta_maintenance.storage.hdfs import native_options, webhdfs_options
from delta_maintenance.storage.hdfs.native_options import NativeOptions
from delta_maintenance.storage.hdfs.webhdfs_options import WebHdfsOptions

NAMES = native_options.NAMES | webhdfs_options.NAMES


def parse_options(
    address: Address,
    given: Mapping[str, str] | None,
    environment: Mapping[str, str] | None = None,
) -> NativeOptions | WebHdfsOptions:
    """Parses the options of an `hdfs:`, `webhdfs:` or `swebhdfs:` address.

    `InvalidRequestError` for an address or option that is not understood.
    """
    if address.scheme == "hdfs":
        return NativeOptions.parse(given, address)
    return WebHdfsOptions.parse(given, address, environment)
