"""Ports for servers that cannot choose one themselves."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_DYNAMIC = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Returns a port of the loopback interface that is free.

    It is none of those that the system gives to connections, and to servers that accept any port.
    Seconds can pass until the server opens its port, and no other process gets it in the meantime.
    """
    first = int(_DYNAMIC.read_text().split()[0]) if _DYNAMIC.exists() else 32_768
    # If the machine has left no others, one of all.
    end = first if first > 2 * _LOWEST else 65_536
    while True:
        with socket.socket() as probe:
            port = random.SystemRandom().randrange(_LOWEST, end)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
