"""Definitions that all operations share.

Orchestrators import these names from here. They are loaded on first use, so that parsing a Dag does
not load them.
"""

from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names

if TYPE_CHECKING:
    from delta_maintenance.operations.core.context import RunContext
    from delta_maintenance.operations.core.facts import (
        brief_facts,
        count_text,
        fact_lines,
        shown,
        size_text,
    )
    from delta_maintenance.operations.core.given_options import (
        read_options,
        replace_flags,
        require_use_of_quiet,
    )
    from delta_maintenance.operations.core.logged_progress import LoggedProgress
    from delta_maintenance.operations.core.registry import find, known

__getattr__, __dir__ = lazy_names(
    __name__,
    context="Prepared RunContext options_for",
    facts="brief_facts count_text fact_lines shown size_text",
    flags="Engine Flag OperationId OperationSince OtherWritersField flag_fields option "
    "policy_option",
    freed="Freed freed_bytes unfreed_texts",
    given_options="read_options replace_flags require_use_of_quiet",
    logged_progress="LoggedProgress",
    registry=(
        "AnyOperation BUILT_IN find known names operations policy_operations register "
        "spark_operations unregister"
    ),
)
