"""`fsck`: say whether a table is sound, and put right what can be without loss."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import Verbs, add_engine, add_verb, open_table
from delta_maintenance.cli.output import (
    Progress,
    count_text,
    print_fields,
    print_json,
    print_table,
)
from delta_maintenance.cli.spark_launcher import absolute, run_spark_job
from delta_maintenance.errors import CorruptTableError

if TYPE_CHECKING:
    from delta_maintenance.operations.fsck import FsckOptions, FsckPlan, FsckResult


def add_parser(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    parser = add_verb(
        verbs,
        "fsck",
        summary="say whether a table is sound, and what is wrong",
        description="Hold everything against everything: commits against the rules, checkpoints, "
        "compactions and\nchecksums against the commits, the log against the files that are there. "
        "Nothing is changed\nunless a repair is asked for. Prints what was found, each with what "
        "to do about it; the exit\nstatus is 5 where the table is corrupt, and stays so after the "
        "repairs.",
        json_help="print the Result, with --dry-run the Plan, as one JSON document",
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="open the footer of every data file, and every deletion vector; from 100000 of them "
        "on by a Spark job, unless --engine says otherwise",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="do what cannot lose anything: lead _last_checkpoint to a checkpoint that is there, "
        "and write damaged checkpoints anew where the log before them is whole",
    )
    parser.add_argument(
        "--remove-missing-files",
        action="store_true",
        help="commit removes of the entries whose data files are gone; their rows are out of the "
        "table then",
    )
    parser.add_argument(
        "--allow-append-only",
        action="store_true",
        help="with the former: also on an append-only table, which delta.appendOnly is switched "
        "off for in that commit, and on again in the next one",
    )
    parser.add_argument(
        "--other-writers",
        choices=("conditional_put", "spark", "none"),
        help="who else commits to a table on S3, which has to be said before entries are removed: "
        "writers that put conditionally (delta-rs, Trino and the like), Delta Spark, or nobody",
    )
    parser.add_argument(
        "--report",
        metavar="URI",
        help="a new Parquet file for all findings, in any store and outside of the table; without "
        "it the first of each kind are told",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what is wrong, and what would be repaired"
    )
    add_engine(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Looks, and unless this is a dry run repairs what may be."""
    # Loads pyarrow, which `--help` must not wait for.
    from delta_maintenance.operations import fsck

    options = fsck.FsckOptions(
        deep=arguments.deep,
        engine=arguments.engine or "auto",
        repair=arguments.repair,
        remove_missing_files=arguments.remove_missing_files,
        allow_append_only=arguments.allow_append_only,
        other_writers=arguments.other_writers,
    )
    if options.deep and options.engine == "spark" and not arguments.dry_run:
        _conclude(_submitted(options, arguments), arguments)
        return
    table = open_table(arguments)
    with Progress() as progress:
        surveyed = fsck.survey(
            table,
            options,
            now=clock.now(),
            report=arguments.report,
            storage_options=dict(arguments.storage_options) or None,
            progress=progress,
        )
        by_spark = surveyed.plan.engine == "spark"
        if not arguments.dry_run and not by_spark:
            result = fsck.apply(
                table, surveyed.plan, now=clock.now(), progress=progress, surveyed=surveyed
            )
    if arguments.dry_run:
        _conclude(surveyed.plan, arguments)
    else:
        _conclude(_submitted(options, arguments) if by_spark else result, arguments)


def _submitted(options: FsckOptions, arguments: argparse.Namespace) -> FsckResult:
    """The Result of a Spark job, which looks and repairs on its own."""
    from delta_maintenance.operations import fsck

    report = None if arguments.report is None else absolute(arguments.report)
    job = {"options": {**options.to_json(), "engine": "spark"}, "report_uri": report}
    return fsck.FsckResult.from_json(run_spark_job("fsck", job, arguments))


def _conclude(document: FsckPlan | FsckResult, arguments: argparse.Namespace) -> None:
    _print(document, arguments)
    if document.num_corrupt:
        raise CorruptTableError(
            f"{count_text(document.num_corrupt, 'finding')} of corruption",
            version=document.version,
            remedy="see each for what to do",
        )


def _print(document: FsckPlan | FsckResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(document.to_json())
        return
    fields: dict[str, object] = {
        "table": document.table,
        "version": document.version,
        "status": document.status,
        "findings": [f"{c.kind}: {c.count:,} ({c.severity})" for c in document.counts],
        "repairs": [str(repair) for repair in document.repairs],
        "report": document.report,
        "notes": document.notes,
    }
    print_fields("fsck, dry run" if arguments.dry_run else "fsck", fields)
    if document.findings:
        print_table(
            ("severity", "kind", "version", "path", "problem", "what to do"),
            [
                (f.severity, f.kind, f.version, f.path, f.problem, f.remedy)
                for f in document.findings
            ],
        )
