"""What all tasks of this package share: flags, errors to retry, asset events and XCom values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance.address import Address
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.store_options import parse_flag
from delta_maintenance_airflow.compat import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

_END_OF_TRY = timedelta(seconds=15)
"""The time in which Airflow ends a try that it has replaced, because its scheduler was lost."""


def as_flag(value: bool | str, name: str) -> bool:
    """Returns a flag from an argument, whose text may come from a template; empty is false.

    Text that is neither true nor false fails the task without retries.
    """
    try:
        return bool(parse_flag(value or "false", name)) if isinstance(value, str) else value
    except InvalidRequestError as error:
        raise AirflowFailException(str(error)) from None


def as_number(value: int | str | None) -> int | None:
    """A whole number; None for None."""
    return None if value is None else int(value)


def as_names(value: Sequence[str] | str) -> tuple[str, ...]:
    """A list of names, or a text with commas."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(name.strip() for name in names if name.strip())


def task_key(task: BaseOperator, context: Context) -> list[Any]:
    """Returns a key that is the same in every try of a task, and different after it is cleared."""
    ti = context["ti"]
    # Clearing a task adds the number of tries so far to max_tries; a retry does not.
    first_try = ti.max_tries - (task.retries or 0) + 1
    return [ti.dag_id, ti.run_id, ti.task_id, ti.map_index, first_try]


def earlier_tries(task: BaseOperator, context: Context) -> int:
    """Returns the number of tries that ended without success since the task was last cleared."""
    return max(0, int(context["ti"].try_number) - int(task_key(task, context)[-1]))


def holder(context: Context) -> str:
    """Returns the name of a task for processes that wait for it; the same in every try of it."""
    ti = context["ti"]
    mapped = f"[{ti.map_index}]" if _is_mapped(ti) else ""
    return f"{ti.dag_id}, run {ti.run_id}, task {ti.task_id}{mapped}"


def link_to_holder(name: str) -> str | None:
    """Returns the page of the task of this name; see `holder`. None for the name of no task."""
    # Neither a Dag nor a task can have a comma in its ID.
    match = re.fullmatch(r"([^,]+), run (.+), task ([^,\[]+)(?:\[(\d+)\])?", name)
    return None if match is None else _link(match[1], match[2], match[3], match[4])


def claim(context: Context) -> dict[str, Any]:
    """Returns for whom a lease is taken, and how long an earlier try has to end."""
    return {"holder": holder(context), "patience": _END_OF_TRY}


def link_to(context: Context) -> str:
    """Returns the page of a task, relative to Airflow's address."""
    ti = context["ti"]
    return _link(ti.dag_id, ti.run_id, ti.task_id, ti.map_index if _is_mapped(ti) else None)


def _link(dag_id: str, run_id: str, task_id: str, map_index: int | str | None) -> str:
    dag, run, task = (quote(identifier, safe=":+") for identifier in (dag_id, run_id, task_id))
    page = f"/dags/{dag}/runs/{run}/tasks/{task}"
    return page if map_index is None else f"{page}/mapped/{map_index}"


def _is_mapped(ti: Any) -> bool:
    return ti.map_index is not None and ti.map_index >= 0


def returned_values(ti: Any, task_id: str) -> list[Any]:
    """Returns the values of mapped tasks, including failed ones, by one request."""
    values = ti.xcom_pull(task_ids=[task_id], key=BaseXCom.XCOM_RETURN_KEY) or []
    return [returned for returned in values if returned is not None]


def returned_rows(ti: Any, task_id: str) -> list[Any]:
    """Returns the values of mapped tasks, some of which return lists of them."""
    return flatten(returned_values(ti, task_id))


def flatten(values: Iterable[Any]) -> list[Any]:
    """Returns the values, with the items of a list in its place."""
    return [row for rows in values for row in (rows if isinstance(rows, list) else [rows])]


@contextmanager
def retrying_only_what_may_pass() -> Iterator[None]:
    """Raises `AirflowFailException` for errors for which a retry cannot help, such as a wrong
    address or a damaged log. Other errors pass through, and Airflow retries as configured.
    """
    try:
        yield
    except DeltaMaintenanceError as error:
        # The base class stands for a failure within Spark, which a retry may or may not fix.
        if error.retryable or type(error) is DeltaMaintenanceError:
            raise
        # Imported here, because the files of Dags are parsed often.
        from delta_maintenance.operations.core import replace_flags

        raise AirflowFailException(replace_flags(str(error))) from error


def add_to_outlet_events(
    task: BaseOperator, context: Context, table_uri: str, extra: Mapping[str, Any]
) -> None:
    """Adds `extra` to the event of every asset in the task's outlets.

    An alias resolves to an asset for the maintenance of the table. The table's own asset would
    trigger the Dags that wait for new data, possibly including this one.
    """
    for outlet in task.outlets:
        if isinstance(outlet, AssetAlias):
            maintenance = Asset(uri=f"{asset_uri(table_uri)}?maintenance=run")
            context["outlet_events"][outlet].add(maintenance, extra=dict(extra))
        elif isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = dict(extra)


def asset_uri(address: str) -> str:
    """Returns the address of the table as its producers use it: local paths as `file` URIs."""
    parsed = Address.parse(address)
    return address if parsed.scheme else Path(str(parsed.absolute())).as_uri()


LIMIT = 8_000
"""The maximum number of characters of the JSON."""
_SHOWN = 10


def flat(document: Mapping[str, Any], *, limit: int = LIMIT) -> dict[str, Any]:
    """Returns the facts of a JSON object: strings, numbers, flags, and lists of strings.

    The name of a field of a nested object consists of both names, such as
    `protocol_after_min_writer_version`. A list is reduced to its first ten items, with objects as
    one line of text, and `num_NAME` contains the number of all items if some are omitted. If the
    result is longer than the limit, the longest values are truncated.
    """
    facts = dict(_facts(document))
    while len(json.dumps(facts)) > limit:
        longest = max(facts, key=lambda name: len(json.dumps(facts[name])))
        shortened = _shorten(facts[longest])
        if shortened is None:
            del facts[longest]
        else:
            facts[longest] = shortened
    return facts


def _facts(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _facts(value, f"{prefix}{name}_")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", [_text(item) for item in value[:_SHOWN]]
            if len(value) > _SHOWN:
                yield f"{prefix}num_{name}", len(value)
        else:
            yield f"{prefix}{name}", value


def _text(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    facts = {name: value for name, value in item.items() if value not in (None, [], {})}
    return ", ".join(
        f"{name}: {value}" for name, value in facts.items() if not isinstance(value, list | dict)
    )


def _shorten(value: Any) -> Any | None:
    """Returns a shorter value; None if it cannot be shortened."""
    match value:
        case str() if len(value) > 1:
            return f"{value[: len(value) // 2].removesuffix('…')}…"
        case [*items] if items:
            cut = [_shorten(item) if len(item) > _LINE else item for item in items]
            return cut if cut != items else items[: len(items) // 2]
        case _:
            return None


_LINE = 200
"""The number of characters to which items of lists may be truncated while other items are
longer.
"""
