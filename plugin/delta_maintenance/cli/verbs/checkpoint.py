"""`checkpoint`: write the state of a version so that readers need not replay its log."""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import (
    Verbs,
    add_engine,
    add_verb,
    at_least,
    open_table,
)
from delta_maintenance.cli.output import Progress, print_fields, print_json, warn
from delta_maintenance.cli.spark_launcher import run_spark_job

if TYPE_CHECKING:
    from delta_maintenance.operations.checkpoint import CheckpointPlan, CheckpointResult

KINDS = ("auto", "classic", "v2-classic", "v2-json", "v2-parquet")


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "checkpoint",
        summary="write a checkpoint, so that the table opens fast",
        description="Write the state of a version as a checkpoint, so that readers need not "
        "replay its log.\nAdds no version and deletes nothing; the checkpoint is read back and "
        "compared before any\nreader can see it. Prints what was written, with --dry-run what "
        "would be, and why.",
        json_help="print the Result, with --dry-run the Plan, as one JSON document",
    )
    parser.add_argument(
        "--kind",
        choices=KINDS,
        help="classic is V1; the others are V2: one file under the classic name, or a UUID-named "
        "top-level file as JSON or Parquet; auto, the default, follows the table's "
        "delta.checkpointPolicy",
    )
    parser.add_argument(
        "--actions-per-sidecar",
        metavar="N",
        type=partial(at_least, 0),
        help="of V2 checkpoints: file actions per sidecar, by default 50000; 0 keeps them in the "
        "top-level file",
    )
    parser.add_argument(
        "--time-zone",
        metavar="Z",
        help="IANA name of the zone in which partition values of type timestamp without a zone "
        "are meant, such as Europe/Paris; only needed where the table sets "
        "delta.checkpoint.writeStatsAsStruct",
    )
    parser.add_argument(
        "--version", metavar="N", type=int, help="the version to write, by default the latest"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be written, and why"
    )
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Plans, and unless this is a dry run applies."""
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import checkpoint

    given = {
        "kind": arguments.kind,
        "actions_per_sidecar": arguments.actions_per_sidecar,
        "time_zone": arguments.time_zone,
        "engine": arguments.engine,
    }
    options = checkpoint.CheckpointOptions(
        **{name: value for name, value in given.items() if value is not None}
    ).validated()
    table = open_table(arguments)
    snapshot = table.snapshot(version=arguments.version)
    warn(snapshot.warnings)
    plan = checkpoint.plan(snapshot, options, now=clock.now())
    if arguments.dry_run:
        _print("checkpoint, dry run", plan, arguments)
        return
    if plan.engine == "spark" and not plan.is_noop:
        # The job plans anew; for the very version and engine that were decided here.
        job = {"version": plan.version, "options": {**options.to_json(), "engine": "spark"}}
        result = checkpoint.CheckpointResult.from_json(run_spark_job("checkpoint", job, arguments))
    else:
        with Progress() as progress:
            result = checkpoint.apply(
                table, plan, snapshot=snapshot, new_id=clock.new_id, progress=progress
            )
    _print("checkpoint", result, arguments)


def _print(
    title: str, record: CheckpointPlan | CheckpointResult, arguments: argparse.Namespace
) -> None:
    if arguments.json:
        print_json(record.to_json())
        return
    # A field that says nothing beyond its default is left out for people.
    values = ((field, getattr(record, field.name)) for field in dataclasses.fields(record))
    print_fields(
        title,
        {field.name.replace("_", " "): value for field, value in values if value != field.default},
    )
