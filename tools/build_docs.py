"""Build the documentation site into build/docs/site.

    make docs

Every warning is an error: a link that leads nowhere, an anchor that is not there, a page that the
navigation lacks. Nothing is fetched, neither by the build nor by the pages.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Some parts of pages are made from what tests and benchmarks play.
sys.path.append(str(ROOT))
from docs_site import benchmarks, command_line, markdown_site, pages  # noqa: E402

CONFIGURATION = ROOT / "zensical.toml"
BUILD = ROOT / "build" / "docs"


def main() -> int:
    """Returns the exit status: 0 if the site was built without a warning."""
    configuration = configured(CONFIGURATION.read_text())
    project = tomllib.loads(configuration)["project"]
    try:
        collected = pages.collect()
        require_navigation(project["nav"], set(collected))
    except pages.PageError as error:
        print(f"documentation: {error}", file=sys.stderr)
        return 1
    sources, site = BUILD / project["docs_dir"], BUILD / project["site_dir"]
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    (BUILD / CONFIGURATION.name).write_text(configuration)
    for name, text in collected.items():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_text(text)
    for name in pages.assets():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "docs" / name, sources / name)
    for name, plot in benchmarks.plots():
        (sources / name).write_bytes(plot)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=BUILD, capture_output=True, text=True)
    if built.returncode:
        # The rest is a traceback of the generator about its own exit. It always prints in colour.
        problems = (built.stdout + built.stderr).split("Traceback", 1)[0]
        sys.stderr.write(re.sub(r"\x1b\[[0-9;]*m", "", problems))
        return 1
    markdown_site.write(
        site,
        name=project["site_name"],
        description=project["site_description"],
        nav=project["nav"],
        pages=collected,
    )
    print(f"{len(collected)} pages in {site.relative_to(ROOT)}", file=sys.stderr)
    return 0


def configured(text: str) -> str:
    """The configuration with an entry of the navigation for each purpose of verbs."""
    entries = " ".join(
        f'{{ "Commands: {purpose}" = "{pages.PURPOSES}{purpose}.md" }},'
        for purpose in command_line.verbs_by_purpose()
    )
    return re.sub(r"^( *)# verbs$", rf"\1{entries}", text, flags=re.MULTILINE)


def require_navigation(nav: markdown_site.Nav, known: set[str]) -> None:
    """Raises `PageError` unless the navigation has every page once and no other."""
    listed = [page for _, _, page in markdown_site.entries(nav)]
    problems = [f"{page} twice" for page in sorted(set(listed)) if listed.count(page) > 1]
    problems += [f"{page}, which does not exist" for page in sorted(set(listed) - known)]
    if problems:
        raise pages.PageError(f"the navigation in zensical.toml lists {', '.join(problems)}")
    if known - set(listed):
        missing = ", ".join(sorted(known - set(listed)))
        raise pages.PageError(f"the navigation in zensical.toml lacks {missing}")


if __name__ == "__main__":
    sys.exit(main())
