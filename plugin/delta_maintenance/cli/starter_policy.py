"""The policy that `init` writes, which also applies to a table without a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_maintenance.policies.definition.policy import Policy

POLICY = """\
# The tables that are maintained, and how. Check this file with:
#
#     delta-maintenance assess policy.yaml
#
version: 1

defaults:
  checkpoint: true            # after 100 commits
  compact_log: true
  clean_log: true             # deletes history that is older than the log retention
  optimize: true              # merges small files, and files with many deleted rows
  vacuum: {every: 7 days}     # deletes files that no retained version needs
  approval: [vacuum]          # run only after a person has agreed to the plan
  limits: {max_deleted_bytes: 1 TiB}

tables:
  # Every table below a folder on this machine:
  - {name: local, pattern: "${env:PWD}/lake/**"}

  # Tables in an object store. The connection is one of Airflow's or Dagster's; on the command line,
  # credentials come from the environment, and `storage` can be left out.
  # - name: orders
  #   uri: s3://lake/sales/orders
  #   storage: {connection: lake}
  #   other_writers: conditional_put      # delta-rs, Trino and the like; `spark` for Delta Spark
"""


def policy_for(address: str, *, other_writers: str | None) -> Policy:
    """Returns the policy for a single table."""
    import yaml

    from delta_maintenance.policies.definition.policy import Policy

    table = {"name": address, "uri": address, "other_writers": other_writers}
    defaults = yaml.safe_load(POLICY)["defaults"]
    return Policy.model_validate({"version": 1, "defaults": defaults, "tables": [table]})
