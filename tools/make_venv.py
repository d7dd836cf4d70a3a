"""Build `.venv` in the checkout, unless it is up to date.

    python3.11 tools/make_venv.py

It holds the project (editable) with its `dev` extra at the exact versions of constraints.txt, and
nothing outside the checkout is changed. A stamp in it says what it was built from: when those
versions, the project's own metadata, the interpreter or the checkout's place change, it is built
anew.

Standard library only: this is what runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "built-from"
CONSTRAINTS = ROOT / "constraints.txt"

# What builds the project itself; installed first, so that its version is pinned like the rest.
BUILD_TOOLS = ["pip", "setuptools", "hatchling", "editables"]


def main() -> None:
    """Bring `.venv` up to date; ends with one line on stderr where this machine can't."""
    wanted = fingerprint()
    if STAMP.is_file() and STAMP.read_text() == wanted:
        return
    started = time.monotonic()
    print("Installing into .venv (once; a minute or two) …", file=sys.stderr, flush=True)
    try:
        shutil.rmtree(VENV, ignore_errors=True)
        bootstrap = create()
        install(bootstrap, *BUILD_TOOLS)
        own = [str(VENV / "bin" / "python"), "-m", "pip"]
        install(own, "--no-build-isolation", "--editable", f"{ROOT}[dev]")
    except subprocess.CalledProcessError as error:
        sys.exit(f"setting up .venv failed, see above: {' '.join(error.cmd[:4])} …")
    STAMP.write_text(wanted)
    print(f".venv is ready after {time.monotonic() - started:.0f} s", file=sys.stderr)


def fingerprint() -> str:
    """What the environment depends on, as one line of hex."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = {
        "constraints": CONSTRAINTS.read_text(),
        # Not the whole file: settings of ruff or pytest change no installed package.
        "project": [project["build-system"], project["project"], project["tool"]["hatch"]],
        "python": sys.version,
        "base": sys.base_prefix,
        # Scripts in the environment name it by its full path.
        "place": str(VENV),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def create() -> list[str]:
    """Create the empty environment; returns the command that is a pip for it."""
    if has_module("ensurepip"):
        run(sys.executable, "-m", "venv", str(VENV))
        return [str(VENV / "bin" / "python"), "-m", "pip"]
    if not has_module("pip"):
        sys.exit(f"setting up .venv failed: {sys.executable} has no pip (Debian: python3-pip)")
    # Debian keeps ensurepip in a package of its own: the machine's pip serves instead.
    run(sys.executable, "-m", "venv", "--without-pip", str(VENV))
    return [sys.executable, "-m", "pip", "--python", str(VENV / "bin" / "python")]


def has_module(name: str) -> bool:
    """Whether `python -m name` would start: a left-over folder of that name is not enough."""
    command = [sys.executable, "-m", name, "--version"]
    return subprocess.run(command, capture_output=True).returncode == 0


def install(pip: list[str], *packages: str) -> None:
    """Install at the versions of constraints.txt."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    # Most modules are never imported here: those that are get compiled then.
    pinned = ["--no-compile", "--constraint", str(CONSTRAINTS)]
    run(*pip, "install", *quiet, *pinned, *packages)


def run(*command: str) -> None:
    """Run `command`; its output goes to stderr, since stdout belongs to who called us."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


if __name__ == "__main__":
    main()
