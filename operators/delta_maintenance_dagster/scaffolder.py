"""The output of `dg scaffold defs`: a component with comments on all its settings."""

from __future__ import annotations

from textwrap import dedent

import dagster as dg


class DeltaMaintenanceScaffolder(dg.Scaffolder):
    """Writes `defs.yaml` with one table and the usual policy."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Writes the YAML file, or Python code if requested."""
        request.target_path.mkdir(parents=True, exist_ok=True)
        if request.scaffold_format == "python":
            (request.target_path / "component.py").write_text(_PYTHON)
        else:
            text = _YAML.replace("TYPE", request.type_name)
            (request.target_path / "defs.yaml").write_text(text)


_YAML = dedent(
    """\
    type: TYPE

    attributes:
      # The rules for all tables. `policy: policy.yaml` reads them from a file instead.
      defaults:
        checkpoint: {max_commits: 100}
        compact_log: true
        clean_log: true
        vacuum: {every: 7 days}
      tables:
        - name: lake/events
          uri: /data/lake/events
      # storage:
      #   options:
      #     AWS_REGION: eu-central-1
      #     AWS_SECRET_ACCESS_KEY: ${env:LAKE_SECRET}
      # execution: {tables_per_step: 50}
      # schedule: {cron: "0 2 * * *", timezone: Europe/Paris}
      # health_schedule: {cron: "0 * * * *"}
    """
)
_PYTHON = dedent(
    '''\
    """Maintains Delta tables."""

    import dagster as dg

    from delta_maintenance.policies.definition.rules import Rules
    from delta_maintenance_dagster import DeltaMaintenanceComponent, DeltaTableEntry


    @dg.component_instance
    def load(context: dg.ComponentLoadContext) -> DeltaMaintenanceComponent:
        return DeltaMaintenanceComponent(
            defaults=Rules(checkpoint=True, compact_log=True, clean_log=True, vacuum=True),
            tables=[DeltaTableEntry(name="lake/events", uri="/data/lake/events")],
        )
    '''
)
