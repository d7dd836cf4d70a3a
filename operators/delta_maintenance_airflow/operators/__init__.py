"""Operators that maintain Delta tables: one for each operation, named after it.

The operator of `clean-log` is `DeltaCleanLogOperator`; an operation of another distribution has one
too. The classes are made from the records of the operations when a Dag imports them. Operators for
the tables of a policy are in `policy`, operators for manual runs in `manual`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("Delta") and name.endswith("Operator"):
        from delta_maintenance_airflow.operators.operations import operator_named

        operator = operator_named(name)
        if operator is not None:
            return operator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from delta_maintenance.operations.core.registry import names
    from delta_maintenance_airflow.operators.descriptions import class_name

    return sorted({*globals(), *map(class_name, names())})
