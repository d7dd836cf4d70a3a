"""Trees of Debian in folders, made by debootstrap, and commands that run in one.

It needs Linux, root and debootstrap.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# How this machine reaches its registries.
_SETTINGS = (Path("/etc/pip.conf"), Path("/etc/resolv.conf"), Path("/etc/ssl/certs"))
# The first process of the namespaces: its end is that of all others, and of the mounts.
_ENTER = """\
set -e
tree=$1 folder=$2
shift 2
mount --make-rprivate /
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"
mount -t tmpfs tmpfs "$tree/tmp"
for shared in $SHARED; do
    if [ -d "$shared" ]; then mkdir -p "$tree$shared"; else touch "$tree$shared"; fi
    mount --bind "$shared" "$tree$shared"
done
exec chroot "$tree" sh -c 'cd "$0" && exec "$@"' "$folder" "$@"
"""


class Missing(Exception):
    """Something that is needed and that this machine lacks."""


def check(*programs: str) -> None:
    """Raises Missing for the first thing that this machine lacks, also of these programs."""
    if os.geteuid() != 0:
        raise Missing("root")
    for program in ("debootstrap", "unshare", *programs):
        if shutil.which(program) is None:
            raise Missing(f"the program {program}")


def mirror(suite: str) -> str:
    """The address of the machine's mirror of Debian; of its security updates for `-security`.
    Raises Missing if it has none.
    """
    wanted = r".*-security" if suite.endswith("-security") else r"[a-z]+"
    command = ("apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(SITE)")
    try:
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise Missing("apt") from None
    for line in lines.splitlines():
        if found := re.fullmatch(rf"Debian {wanted} (\S+)", line):
            return found[1]
    raise Missing("a mirror of Debian among the sources of apt")


def debootstrap(suite: str, place: Path, *packages: str) -> None:
    """Makes a tree of Debian, unless it is there; from the machine's mirror, if it has one."""
    if place.exists():
        return
    unfinished = place.with_name(f"{place.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    options = ["--variant=minbase", *([f"--include={','.join(packages)}"] if packages else [])]
    with Path(f"{place}.log").open("wb") as log:
        command = ["debootstrap", *options, suite, str(unfinished)]
        with suppress(Missing):
            command.append(mirror(suite))
        subprocess.run(command, check=True, stdout=log, stderr=log)
    unfinished.rename(place)


def inside(tree: Path, *command: str) -> tuple[str, ...]:
    """The command of the machine that runs a command in a tree, in the folder of this checkout,
    which has its own path there.

    It has processes and mounts of its own, and the network and the environment of the machine.
    """
    shared = (ROOT, ROOT.parent / "shared", *_SETTINGS)
    names = " ".join(str(path) for path in shared if path.exists())
    namespaces = ("--fork", "--pid", "--mount", "--kill-child")
    enter = ("sh", "-c", _ENTER, "sh", str(tree), str(ROOT), *command)
    return ("env", f"SHARED={names}", "unshare", *namespaces, *enter)
