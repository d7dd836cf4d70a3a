"""Build `.venv` in the checkout, unless it is up to date, and print the name of its folder.

    python3.11 tools/make_venv.py [--quick]

It holds the project (editable) with its extras `dev` and, where they can be had, `readers` at the
exact versions of constraints.txt, and nothing outside the checkout is changed. A stamp in it says
what it was built from: when those versions, the project's own metadata, the interpreter or the
checkout's place change, it is built anew. When only the project's version changes, only the project
is installed again, and the readers are tried again if they could not be installed.

With `--quick`, an up-to-date `.venv` is used. Without one, the smaller `.venv-quick` with the extra
`quick` is built instead: a quarter of the size, without Airflow, Dagster, Spark and the readers.

Standard library only: this is what runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
QUICK_VENV = ROOT / ".venv-quick"
CONSTRAINTS = ROOT / "constraints.txt"

# What builds the project itself; installed first, so that its version is pinned like the rest.
BUILD_TOOLS = ["pip", "setuptools", "hatchling", "editables"]


def main() -> None:
    """Bring the environment up to date; ends with one line on stderr where this machine can't."""
    quick = "--quick" in sys.argv[1:] and not is_current(VENV, "dev")
    venv, extra = (QUICK_VENV, "quick") if quick else (VENV, "dev")
    if is_current(venv, extra):
        install_version(venv)
    else:
        build(venv, extra)
    if not quick and any(map(is_missing, readers())):
        install_readers()
    print(venv.name)


def build(venv: Path, extra: str) -> None:
    """Build an environment with an extra of the project from nothing."""
    started = time.monotonic()
    print(f"Installing into {venv.name} (once; a minute or two) …", file=sys.stderr, flush=True)
    try:
        shutil.rmtree(venv, ignore_errors=True)
        bootstrap = create(venv)
        install(bootstrap, *BUILD_TOOLS)
        install(pip_of(venv), "--no-build-isolation", "--editable", f"{ROOT}[{extra}]")
    except subprocess.CalledProcessError as error:
        sys.exit(f"setting up {venv.name} failed, see above: {' '.join(error.cmd[:4])} …")
    stamp_of(venv).write_text(fingerprint(venv, extra))
    print(f"{venv.name} is ready after {time.monotonic() - started:.0f} s", file=sys.stderr)


def is_current(venv: Path, extra: str) -> bool:
    """Whether an environment was built from what the checkout says now."""
    stamp = stamp_of(venv)
    return stamp.is_file() and stamp.read_text() == fingerprint(venv, extra)


def stamp_of(venv: Path) -> Path:
    """The file in an environment that says what it was built from."""
    return venv / "built-from"


def pip_of(venv: Path) -> list[str]:
    """The command of an environment's own pip."""
    return [str(venv / "bin" / "python"), "-m", "pip"]


def fingerprint(venv: Path, extra: str) -> str:
    """What an environment depends on, as one line of hex."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = {
        "constraints": CONSTRAINTS.read_text(),
        # Not the whole file: settings of ruff or pytest change no installed package.
        "project": [project["build-system"], project["project"], project["tool"]["hatch"]],
        "python": sys.version,
        "base": sys.base_prefix,
        # Scripts in the environment name it by its full path.
        "place": str(venv),
        "extra": extra,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def readers() -> list[str]:
    """The requirements of the extra `readers`, which some platforms have no files of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["readers"])


def is_missing(requirement: str) -> bool:
    """Whether no version of a required package is in the environment."""
    found = re.match(r"[\w.-]+", requirement)
    places = [str(place) for place in VENV.glob("lib/*/site-packages")]
    return found is None or not any(metadata.distributions(name=found[0], path=places))


def install_readers() -> None:
    """Install the extra `readers`, if that is possible; otherwise the next run tries again."""
    try:
        install(pip_of(VENV), *readers())
    except subprocess.CalledProcessError:
        print(
            "NO OTHER READERS, see above: their tests are skipped; the next `make` tries again",
            file=sys.stderr,
        )


def install_version(venv: Path) -> None:
    """Install the project again if its version has changed, so that its metadata tell the same."""
    source = (ROOT / "plugin" / "delta_maintenance" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"', source, re.MULTILINE)
    if version is None:
        sys.exit("plugin/delta_maintenance/__init__.py states no __version__")
    if any(venv.glob(f"lib/*/site-packages/delta_maintenance-{version[1]}.dist-info")):
        return
    try:
        install(pip_of(venv), "--no-build-isolation", "--no-deps", "--editable", str(ROOT))
    except subprocess.CalledProcessError as error:
        sys.exit(f"installing the project failed, see above: {' '.join(error.cmd[:4])} …")


def create(venv: Path, python: str = sys.executable) -> list[str]:
    """Create an empty environment; returns the command that is a pip for it."""
    if has_module("ensurepip"):
        run(python, "-m", "venv", str(venv))
        return [str(venv / "bin" / "python"), "-m", "pip"]
    if not has_module("pip"):
        sys.exit(
            f"setting up {venv.name} failed: {sys.executable} has no pip (Debian: python3-pip)"
        )
    # Debian keeps ensurepip in a package of its own: the machine's pip serves instead.
    run(python, "-m", "venv", "--without-pip", str(venv))
    return [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]


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
