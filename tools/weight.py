"""Print the weight of the product beside that of the last landing: lines, files, imports, names.

    python tools/weight.py [--record]

`--record` writes the current figures to tools/weight.json, in the commit that lands. Nothing fails
for a figure: whoever adds a capability says in the commit what it weighs.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).with_suffix(".json")
PRODUCT = ("plugin", "operators")
_SHORT_MODULE = 60
_EMPTY = (
    " found told each known kept asked given wanted named seen said first last least most many "
    "some other others more left own part parts work what why how whole one both just such this "
    "that these those them it thing things rest same new old made taken shown "
)
"""Names without content."""


def measure() -> dict[str, float]:
    """Returns the figures by what they count."""
    modules = {path: path.read_text() for path in sorted(_modules())}
    lines = sum(text.count("\n") for text in modules.values())
    imports = assigned = empty = participles = 0
    classes: Counter[str] = Counter()
    for text in modules.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += (node.end_lineno or node.lineno) - node.lineno + 1
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = node.name.strip("_")
                participles += name.endswith("ed") and "_" not in name
            names = [name for name in _assigned(node) if name not in ("self", "cls")]
            assigned += len(names)
            empty += sum(f" {name.strip('_')} " in _EMPTY for name in names)
    return {
        "lines": lines,
        "files": len(modules),
        "modules below 60 lines": sum(
            text.count("\n") < _SHORT_MODULE for text in modules.values()
        ),
        "import lines in %": round(100 * imports / lines, 1),
        "names without content in %": round(100 * empty / assigned, 1),
        "functions named by a bare participle": participles,
        "class names defined more than once": sum(count > 1 for count in classes.values()),
    }


def _modules() -> Iterator[Path]:
    for folder in PRODUCT:
        yield from (ROOT / folder).rglob("*.py")


def _assigned(node: ast.AST) -> list[str]:
    """Returns the names that a node assigns, parameters among them."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameters += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
        return [parameter.arg for parameter in parameters]
    return []


def main() -> None:
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    figures = measure()
    for name, figure in figures.items():
        before = recorded.get(name, figure)
        change = f"{figure - before:+,.10g}" if figure != before else "as before"
        print(f"{name:40} {figure:>10,.10g}  {change}")
    if "--record" in sys.argv[1:]:
        RECORD.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
