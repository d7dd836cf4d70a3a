"""Images in place of those of Docker Hub, for machines that reach only registries of packages.

Each has the name and the tag that the Dockerfile or the compose file gives, so these are used as
they are. docs/testing.md lists the differences.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pythons
from container_engine import PLACE, command
from debian import ROOT, Missing, debootstrap, mirror
from go_modules import NoModule, folder_of

DOCKERFILES = ROOT / "tools" / "stand_ins"
# The tags of SeaweedFS are no versions of Go modules; this commit is of its version 4.53.
SEAWEEDFS = "github.com/seaweedfs/seaweedfs@v0.0.0-20261109003541-7506e5f91cd6"
WHEELS = ("pip==24.0", "setuptools==79.0.1")
_BASE = "stand-in:bookworm"
_MACHINE_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def make(image: str) -> None:
    """Makes the stand-in for an image, unless the engine has it. Raises Missing."""
    file = dockerfile(image)
    if not file.is_file():
        raise Missing(f"the image {image}, in whose place there is no {file}")
    _make_base()
    prepare = {"python": _for_python, "seaweedfs": _for_seaweedfs}.get(file.stem, dict)
    try:
        contexts: dict[str, Path] = prepare()
    except NoModule as absent:
        raise Missing(str(absent)) from None
    flags = [f"--build-context={name}={path}" for name, path in contexts.items()]
    _docker("build", "--quiet", f"--tag={image}", f"--file={file}", *flags, str(DOCKERFILES))


def dockerfile(image: str) -> Path:
    """The file that makes the stand-in for an image."""
    return DOCKERFILES / f"{image.partition(':')[0].rpartition('/')[2]}.Dockerfile"


def _make_base() -> None:
    """Imports Debian bookworm with the settings by which this machine reaches its registries."""
    if subprocess.run(command("image", "inspect", _BASE), capture_output=True).returncode == 0:
        return
    tree = PLACE / "bookworm"
    debootstrap("bookworm", tree)
    suites = {"bookworm": "", "bookworm-updates": "", "bookworm-security": "-security"}
    (tree / "etc/apt/sources.list").write_text(
        "".join(f"deb {mirror(kind)} {suite} main\n" for suite, kind in suites.items())
    )
    dump = subprocess.run(("apt-config", "dump"), check=True, capture_output=True, text=True)
    kept = re.findall(r"^Acquire::(?:Check-|http|https|Retries).*", dump.stdout, re.MULTILINE)
    (tree / "etc/apt/apt.conf.d/99machine").write_text("\n".join(kept) + "\n")
    if _MACHINE_CERTIFICATES.is_file():
        # Not at its own path, which the package ca-certificates overwrites.
        (tree / "etc/ssl").mkdir(exist_ok=True)
        shutil.copy(_MACHINE_CERTIFICATES, tree / "etc/ssl/machine.crt")
    if Path("/etc/pip.conf").is_file():
        shutil.copy("/etc/pip.conf", tree / "etc")
    archive = shlex.join(
        ("tar", "-C", str(tree), "--exclude=./var/cache/apt/archives/*.deb", "-c", ".")
    )
    imported = shlex.join(command("import", "-", _BASE))
    subprocess.run(f"{archive} | {imported}", shell=True, check=True, stdout=subprocess.DEVNULL)


def _for_python() -> dict[str, Path]:
    place = PLACE / "cpython"
    if not place.exists():
        pythons.unpack(pythons.embedded("3.11"), place)
    wheels = PLACE / "wheels"
    if not wheels.exists():
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
        subprocess.run((*pip, "--dest", str(wheels), *WHEELS), check=True)
    return {"cpython": place, "wheels": wheels}


def _for_seaweedfs() -> dict[str, Path]:
    place = PLACE / "seaweedfs"
    program = place / "weed"
    if not program.exists():
        module = folder_of(SEAWEEDFS)
        place.mkdir(exist_ok=True)
        shutil.copy(module / "docker" / "entrypoint.sh", place)
        # Not `go install`, which refuses a module that replaces another one.
        build = ("go", "build", "-C", str(module), "-mod=readonly", "-trimpath", "-ldflags=-s -w")
        environment = {**os.environ, "CGO_ENABLED": "0"}
        subprocess.run((*build, "-o", str(program), "./weed"), check=True, env=environment)
    return {"program": place}


def _docker(*arguments: str) -> None:
    subprocess.run(command(*arguments), check=True, stdout=subprocess.DEVNULL)
