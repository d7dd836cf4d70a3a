"""Docker Engine of Debian's packages in namespaces of its own, for machines that have no Docker.

The engine and its containers have their own processes, mounts and network: the ports that they
publish cannot clash with those of the machine, and nothing of them outlives the first process. It
needs Linux, root, debootstrap, and a mirror of Debian among the machine's sources of apt. Its tree
and its images stay in build/containers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import debian
from debian import ROOT

PLACE = ROOT / "build" / "containers"
TREE = PLACE / "engine"
LOG = PLACE / "engine.log"
_PID = PLACE / "engine.pid"
_SOCKET = PLACE / "docker.sock"
_CGROUP = "delta-maintenance-containers"
_PACKAGES = (
    "ca-certificates",
    "docker-buildx",
    "docker-cli",
    "docker-compose",
    "docker.io",
    "iproute2",
    "iptables",
    "slirp4netns",
)
# The first process of the namespaces. The tree becomes their root, since `docker exec` enters the
# root of a mount namespace, whatever a process in it has changed its own root to. slirp4netns, in
# the network of the machine, is the way out of the own network; 10.0.2.3 is its name server.
_START = f"""\
set -e
mount --make-rprivate /
mount --bind {TREE} {TREE}
mkdir -p {TREE}{ROOT} {TREE}/machine
mount --bind {ROOT} {TREE}{ROOT}
mount --rbind /sys {TREE}/sys
mount --rbind /dev {TREE}/dev
mount -t proc proc {TREE}/proc
mount -t tmpfs tmpfs {TREE}/run
cp /etc/resolv.conf {TREE}/etc/resolv.conf
cd {TREE}
pivot_root . machine
umount --lazy machine
unshare --net sh -c '
    ip link set lo up
    until ip route | grep -q default; do sleep 0.1; done
    exec dockerd --data-root {PLACE}/docker --host unix://{_SOCKET} --dns 10.0.2.3 \
        --cgroup-parent /{_CGROUP}' &
until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
slirp4netns --configure --disable-host-loopback $! tap0 &
wait
"""


_started: list[subprocess.Popen[bytes]] = []
"""The process of `unshare`, if this process has started it; `stop` waits for its end."""


def check() -> None:
    """Raises Missing for the first thing that this machine lacks."""
    debian.check("nsenter")


def start() -> None:
    """Starts the engine, unless it runs; makes its tree where there is none."""
    if first_process() is not None:
        return
    debian.debootstrap("trixie", TREE, *_PACKAGES)
    _SOCKET.unlink(missing_ok=True)
    namespaces = ("--fork", "--pid", "--mount", "--ipc", "--uts", "--kill-child")
    with LOG.open("wb") as log:
        process = subprocess.Popen(
            ("unshare", *namespaces, "sh", "-c", _START),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _started.append(process)
    _PID.write_text(str(process.pid))
    end = time.monotonic() + 120
    while subprocess.run(command("version"), capture_output=True).returncode != 0:
        if process.poll() is not None or time.monotonic() > end:
            stop()
            raise RuntimeError(f"Docker Engine did not start; see {LOG}")
        time.sleep(0.2)


def stop() -> None:
    """Ends the engine with all containers, and removes what the kernel keeps of them."""
    if (first := first_process()) is not None:
        os.kill(first, signal.SIGKILL)
        while Path(f"/proc/{first}").exists():
            time.sleep(0.1)
    _PID.unlink(missing_ok=True)
    while _started:
        _started.pop().wait()
    for group in Path("/sys/fs/cgroup").glob(f"**/{_CGROUP}"):
        for folder in sorted(group.glob("**/"), reverse=True):
            with suppress(OSError):
                folder.rmdir()


def command(*arguments: str) -> tuple[str, ...]:
    """The command of the machine that runs `docker` with these arguments."""
    inside = ("nsenter", "--mount", f"--target={first_process() or 0}")
    return (*inside, "docker", "--host", f"unix://{_SOCKET}", *arguments)


def network() -> Path:
    """The network namespace in which ports are published."""
    first = first_process()
    own = os.readlink("/proc/self/ns/net")
    for child in _children(first) if first is not None else []:
        path = Path(f"/proc/{child}/ns/net")
        if os.readlink(path) != own:
            return path
    raise RuntimeError("Docker Engine does not run")


def first_process() -> int | None:
    """The first process of the namespaces, if the engine runs."""
    try:
        parent = int(_PID.read_text())
        # The file may be of an engine that has ended, and the number of another process now.
        is_ours = str(TREE) in Path(f"/proc/{parent}/cmdline").read_text()
    except FileNotFoundError:
        return None
    children = _children(parent) if is_ours else []
    return children[0] if children else None


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
