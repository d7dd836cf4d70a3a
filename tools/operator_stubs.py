"""Write `operators/delta_maintenance_airflow/operators/__init__.pyi`, the types of the operators.

.venv/bin/python tools/operator_stubs.py
"""

from __future__ import annotations

from pathlib import Path

from delta_maintenance.delta_table.methods import annotation
from delta_maintenance.operations.core.flags import FlagField
from delta_maintenance.operations.core.registry import BUILT_IN, find
from delta_maintenance_airflow.operators.descriptions import OperatorDescription, describe
from method_stubs import formatted

STUB = Path(__file__).parents[1] / "operators/delta_maintenance_airflow/operators/__init__.pyi"

_HEAD = """\
# Written by tools/operator_stubs.py from the records of the operations.
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from delta_maintenance_airflow.operators.base import (
    DeltaMaintenanceOperator,
    DeltaReportingOperator,
)
from delta_maintenance_airflow.operators.spark_base import DeltaSparkOperator

def __getattr__(name: str) -> Any: ...
"""


def main() -> None:
    """Write the stub."""
    STUB.write_text(text())


def text() -> str:
    """The stub, from the records."""
    classes = "".join(f"\n{_class(describe(find(name)))}" for name in sorted(BUILT_IN))
    return formatted(_HEAD + classes, STUB)


def _class(description: OperatorDescription) -> str:
    head = f"class {description.name}({', '.join(description.bases)}):"
    if not description.subjects:
        return f"{head} ...\n"
    fields = "".join(f"    {each.name}: {_type(each)}\n" for each in description.subjects)
    arguments = ", ".join(
        f"{each.name}: {_type(each)}{'' if each.is_required else ' = ...'}"
        for each in description.subjects
    )
    init = f"    def __init__(self, *, {arguments}, **kwargs: Any) -> None: ...\n"
    return f"{head}\n{fields}{init}"


def _type(field: FlagField) -> str:
    """The type of an argument; any of them may be a template."""
    text = annotation(field)
    return text if "str" in text.split(" | ") else f"{text} | str"


if __name__ == "__main__":
    main()
