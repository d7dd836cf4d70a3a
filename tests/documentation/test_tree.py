"""The sizes of modules and folders, and the documents that describe the tree."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("plugin", "operators", "dags", "tools", "benchmarks", "demo", "examples", "tests")
MOST_LINES = 500
MOST_MODULES = 20


def modules(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert found
    return found


def test_no_module_is_too_long() -> None:
    lines = {
        str(path.relative_to(ROOT)): path.read_text().count("\n") for path in modules(*FOLDERS)
    }
    assert {module: n for module, n in lines.items() if n > MOST_LINES} == {}


def test_no_folder_has_too_many_modules() -> None:
    counted = Counter(path.parent for path in modules(*FOLDERS))
    crowded = {str(folder.relative_to(ROOT)): n for folder, n in counted.items()}
    # An __init__.py does not count as a module.
    for folder in crowded:
        crowded[folder] -= (ROOT / folder / "__init__.py").exists()
    assert {folder: n for folder, n in crowded.items() if n > MOST_MODULES} == {}


def waiting_generators(tree: ast.Module) -> list[str]:
    """The generators that end with a pool whose threads they wait for."""
    return [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for block in ast.walk(function)
        if isinstance(block, ast.With)
        and any(
            isinstance(item.context_expr, ast.Call)
            and ast.unparse(item.context_expr.func) == "ThreadPoolExecutor"
            for item in block.items
        )
        and any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(block))
    ]


def test_no_generator_waits_for_threads_when_it_is_collected() -> None:
    """The garbage collector runs anywhere, also in a thread that starts another one and has the
    lock of all threads until then (before Python 3.13): a generator of StreamingPool does not wait.
    """
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules("plugin", "operators")
        for name in waiting_generators(ast.parse(path.read_text()))
    }
    # Those that use them close them.
    assert found == {
        "plugin/delta_maintenance/operations/rewriting/engine.py: rewrite",
        "plugin/delta_maintenance/spark/rewriting.py: outcomes",
    }


def block_after(text: str, heading: str) -> str:
    """The first block of code after a heading."""
    return text.split(heading, 1)[1].split("```")[1]


def test_the_layout_in_contributing_is_the_tree() -> None:
    layout = block_after((ROOT / "CONTRIBUTING.md").read_text(), "## Layout\n")
    library = [
        path.name for path in (ROOT / "plugin" / "delta_maintenance").iterdir() if is_package(path)
    ]
    listed = re.findall(r"^    ([a-z_]+)/ ", layout, re.MULTILINE)
    assert sorted(listed) == sorted(library)
    named = " ".join(re.findall(r"^[^ ].*?(?=  |$)", layout, re.MULTILINE))
    folders = [path.name for path in ROOT.iterdir() if path.is_dir() and is_kept(path)]
    assert [name for name in folders if not re.search(rf"(^|[\s/]){name}/", named)] == []
    for place in named.split():
        assert (ROOT / place).exists(), place


def is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def is_kept(folder: Path) -> bool:
    """Whether git keeps the folder: it is neither hidden nor made by a command."""
    ignored = (ROOT / ".gitignore").read_text().split()
    return not folder.name.startswith(".") and not any(
        line.strip("/") == folder.name for line in ignored
    )


def test_the_commands_in_contributing_are_those_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)
    table = re.findall(
        r"^\| `make ([a-z-]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert sorted(table) == sorted(set(commands) - {"help"})


def test_the_layers_in_the_documents_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (
        contract["layers"]
        for contract in contracts["contracts"]
        if contract.get("containers") == ["delta_maintenance"]
    )
    # These modules are about names and imports, not about layers.
    helpers = {"__main__", "dependencies", "lazy", "read_once"}
    checked = [sorted(set(layer.split(" | ")) - helpers) for layer in layers]
    checked = [layer for layer in checked if layer]

    drawn = block_after((ROOT / "docs" / "architecture.md").read_text(), "## Layers\n")
    below = drawn.split("──\n", 1)[1]
    names = re.findall(r"^([a-z].*?)   ", below, re.MULTILINE)
    assert [sorted(line.split(" │ ")) for line in names] == checked

    text = (ROOT / "CONTRIBUTING.md").read_text()
    line = re.search(r"`(cli \| [^`]*)`", text)
    assert line is not None
    short = [sorted(layer.strip().split(" | ")) for layer in line[1].split("→")]
    assert short == checked
