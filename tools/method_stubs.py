"""Write `plugin/delta_maintenance/delta_table/methods.pyi`, the types of the methods of DeltaTable.

.venv/bin/python tools/method_stubs.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from delta_maintenance.delta_table.methods import operation_method
from delta_maintenance.operations.core.registry import BUILT_IN, AnyOperation, find

STUB = Path(__file__).parents[1] / "plugin/delta_maintenance/delta_table/methods.pyi"

_HEAD = """\
# Written by tools/method_stubs.py from the records of the operations.
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, overload
"""
_MODULES = {
    "delta_maintenance.operations.core.flags": ["FlagField"],
    "delta_maintenance.operations.core.registry": ["AnyOperation"],
    "delta_maintenance.delta_table.parts": ["ExecutionParts"],
}
_BODY = """
class OperationMethods:
    def _execution_parts(self) -> ExecutionParts: ...
    def __getattr__(self, name: str) -> Any: ...
"""
_TAIL = """
def operation_method(record: AnyOperation) -> Callable[..., Any]: ...
def annotation(field: FlagField) -> str: ...
"""


def main() -> None:
    """Write the stub."""
    STUB.write_text(text())


def text() -> str:
    """The stub, from the records."""
    records = [find(name) for name in BUILT_IN]
    documents = {
        record.plan.__module__: sorted((record.plan.__name__, record.result.__name__))
        for record in records
    }
    imports = [
        f"from {module} import {', '.join(names)}"
        for module, names in sorted((documents | _MODULES).items())
    ]
    methods = "".join(line for record in records for line in _methods(record))
    return formatted("\n".join([_HEAD, *imports, _BODY]) + methods + _TAIL, STUB)


def formatted(stub: str, path: Path) -> str:
    """Returns the text of a stub as ruff formats it."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=stub, stdout=subprocess.PIPE, text=True, check=True).stdout


def _methods(record: AnyOperation) -> Iterator[str]:
    method = operation_method(record)
    for document, flag in ((record.result, "Literal[False] = ..."), (record.plan, "Literal[True]")):
        parameters = ", ".join(_parameters(method, flag))
        yield f"    @overload\n    def {method.__name__}({parameters})"
        yield f" -> {document.__name__}: ...\n"


def _parameters(method: Callable[..., Any], dry_run: str) -> Iterator[str]:
    positional = True
    for parameter in signature(method).parameters.values():
        if positional and parameter.kind is Parameter.KEYWORD_ONLY:
            positional = False
            yield "*"
        if parameter.name == "self":
            yield "self"
        elif parameter.name == "dry_run":
            yield f"dry_run: {dry_run}"
        else:
            default = "" if parameter.default is Parameter.empty else " = ..."
            yield f"{parameter.name}: {parameter.annotation}{default}"


if __name__ == "__main__":
    main()
