"""The policies that `init` writes, and the one that applies to a table without a policy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_maintenance.policies.definition.policy import Policy

_HEADER = """\
# yaml-language-server: $schema=policy.schema.json
#
# The tables that are maintained, and how. Check this file with:
#
#     delta-maintenance assess policy.yaml
#
"""
_DEFAULTS = """\
version: 1

defaults:
  fsck: {every: 7 days}       # reads the log and lists the files; runs first, and corruption holds
                              # back what writes and deletes, until an fsck finds none
  checkpoint: true            # after 100 commits
  compact_log: true
  clean_log: true             # deletes history that is older than the log retention
  optimize: true              # merges small files, and files with many deleted rows
  vacuum: {every: 7 days}     # deletes files that no retained version needs
"""
_CLUSTER = """\
  cluster: true               # sorts the rows of tables that have clustering columns
"""
_LIMITS = """\
  approval: [vacuum]          # run only after a person has agreed to the plan
  limits: {max_deleted_bytes: 1 TiB}    # a plan that would delete more is refused
"""
_EXAMPLES = """\

tables:
  # Every table below a folder on this machine:
  - {name: local, pattern: "${env:PWD}/lake/**"}

  # Tables in an object store. The connection is one of Airflow's or Dagster's; on the command line,
  # credentials come from the environment, and `storage` can be left out.
  # - name: orders
  #   uri: s3://lake/sales/orders
  #   storage: {connection: lake}
  #   other_writers: conditional_put      # delta-rs, Trino, Delta Spark with our log store
"""
_OTHER_WRITERS = """\
    # Operations that commit on S3 need to know the other writers: conditional_put (delta-rs, Trino,
    # Delta Spark with the log store of `spark-stage --log-store`), none, or spark (Delta Spark
    # without it). With spark, commits are blocked, or with `quiet: 10 minutes` wait until nobody
    # has committed for so long. checkpoint, checksum, compact-log, clean-log, vacuum and fsck make
    # no commit, and work beside every writer. See docs/safety/other-writers.md.
"""
_UNREADABLE = """\
    # These tables could not be opened; `assess --failed` says why. Until they are repaired, runs
    # report them. To leave them out, give their addresses in a list `exclude` of this entry.
"""
UNSTATED = "# other_writers: conditional_put"
POLICY = f"{_HEADER}{_DEFAULTS}{_LIMITS}{_EXAMPLES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedPlace:
    """An address that was scanned for tables."""

    address: str
    is_table: bool
    """Whether it is the address of one table, and not that of a folder of tables."""
    writers: tuple[str, ...] = ()
    """For tables on S3: the writers that their newest commits name."""
    rules: str = UNSTATED
    """For tables on S3: the rules about other writers, as lines of YAML."""
    unreadable: tuple[str, ...] = ()
    """The addresses of the tables that could not be opened."""


def policy_for_places(
    places: Sequence[ScannedPlace], *, heading: str, clusters: bool, options: Mapping[str, str]
) -> str:
    """Returns the text of a policy for the tables at some places.

    `options` are storage options, of which secrets belong into the environment: each value becomes
    a reference to the variable of the same name. `clusters` adds a rule for clustered tables.
    """
    lines = [f"# {heading}\n", _DEFAULTS, _CLUSTER if clusters else "", _LIMITS]
    if options:
        references = ", ".join(f'{name}: "${{env:{name}}}"' for name in sorted(options))
        lines.append(f"  storage: {{options: {{{references}}}}}\n")
    lines.append("\ntables:\n")
    for place, name in zip(places, _names(place.address for place in places), strict=True):
        key, address = ("uri", place.address) if place.is_table else ("pattern", _below(place))
        lines.append(f"  - name: {_yaml_text(name)}\n    {key}: {_yaml_text(address)}\n")
        if place.address.startswith("s3"):
            lines.append(f"{_OTHER_WRITERS}    {place.rules}\n")
            lines += [f"    # Seen: {_plain(writer)}\n" for writer in place.writers]
        if place.unreadable:
            lines.append(_UNREADABLE)
            lines += [f"    #   {_plain(address)}\n" for address in place.unreadable]
    return "".join([_HEADER, *lines])


def policy_for(
    address: str, *, other_writers: str | None, quiet: timedelta | None = None
) -> Policy:
    """Returns the policy for a single table."""
    import yaml

    from delta_maintenance.policies.definition.policy import Policy

    table = {"name": address, "uri": address, "other_writers": other_writers, "quiet": quiet}
    defaults = yaml.safe_load(POLICY)["defaults"]
    return Policy.model_validate({"version": 1, "defaults": defaults, "tables": [table]})


def _yaml_text(text: str) -> str:
    import yaml

    quoted: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 16)
    return quoted.strip()


def _plain(text: str) -> str:
    """Returns the name of a writer or an address without anything that could end the comment."""
    return re.sub(r"[^\w./:+= -]", "?", text, flags=re.ASCII)[:200]


def _below(place: ScannedPlace) -> str:
    return f"{place.address.rstrip('/')}/**"


def _names(addresses: Iterable[str]) -> list[str]:
    """The last folders of addresses, with a number where one repeats."""
    names: list[str] = []
    for address in addresses:
        folder_name = re.split(r"[/?#]", address.rstrip("/"))[-1] or "tables"
        same_names = sum(
            re.fullmatch(rf"{re.escape(folder_name)}(-\d+)?", name) is not None for name in names
        )
        names.append(f"{folder_name}-{same_names + 1}" if same_names else folder_name)
    return names
