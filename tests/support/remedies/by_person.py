"""Which tests cause the other refusals, and what a person must find out where no test can.

Keys are regular expressions for `ERROR: message; remedy`; the first one that fits applies.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.remedies.finding_remedies import ByPerson

CAUSED_ELSEWHERE: Mapping[str, str] = {
    # Retries by orchestrators: every operator loses its first try, and the next one does the work.
    r"^(CommitConflictError|Conflict|StorageError|BusyError|IncompleteError|VanishedFileError): "
    r".*; (run|try|plan|open the table) again": "tests/airflow/operators/test_retries.py",
    r"^(Conclusion|failed): .*; (see the Result, and )?run again": (
        "tests/airflow/operators/test_retries.py"
    ),
    r"check the job's log; it is safe": "tests/airflow/spark/test_submission.py",
    r"cannot be found by an executor": "tests/spark/test_sidecars.py",
    r"run fsck, which finds all such files": "tests/operations/health/test_stored_files.py",
    # Plans of deletions.
    r"would now be cut off": "tests/operations/clean_log/test_concurrency.py",
    r"was held when the plan was made|a version that the .* needs cannot be opened": (
        "tests/policies/test_holders.py"
    ),
    r"protocol or metadata has just changed|no longer exists; run again": (
        "tests/operations/vacuum/test_concurrency.py"
    ),
    r"are both kept as|is kept as|has just kept a version|is now kept as": (
        "tests/operations/keep_version/test_kept_versions.py"
    ),
    r"clocks of the store": "tests/operations/test_clocks.py",
    r"is that of another table|has no ID, by which|the position of the": (
        "tests/operations/holds/test_readers.py"
    ),
    r"and (it )?cannot be examined": "tests/policies/test_clones.py",
    r"within the quiet window": "tests/table/commit/test_guarded.py",
    # Stores.
    r"is zonal": "tests/storage/gcs/test_store.py",
    r"has no hard links|survive a crash": "tests/storage/local/test_store.py",
    r"soft-deleted": "tests/storage/gcs/test_old_versions.py",
    # Catalogs.
    r"is not published; run publish|"
    r"; wait for a release that commits": "tests/table/read/managed/test_managed_log.py",
    r"does not permit|opened by its address is only read|"
    r"not published and reported": "tests/table/read/managed/test_maintenance.py",
    r"refuses the report|takes no reports": "tests/catalogs/unity/test_reports.py",
    r"dropped and created again; plan again|have published and deleted the commit": (
        "tests/operations/publish/test_operation.py"
    ),
    r"signs each request": "tests/catalogs/test_kinds.py",
    r"denies credentials": "tests/cli/test_catalog_runs.py",
    r"the catalog lists no table": "tests/policies/catalogs/test_empty_patterns.py",
    r"in a form that is not understood|and the tags of|^CatalogError: the tags of": (
        "tests/catalogs/test_described.py"
    ),
    r"names no table|at most three parts|not name a table of Unity|requested from a catalog": (
        "tests/catalogs/test_locate.py"
    ),
    r"the file is not YAML|correct the YAML|correct its path": "tests/policies/definition",
}
"""The tests that cause the refusal."""

_WROTE = "which engine wrote the file, and whether it still reads it"
_SETTINGS = "which engine wrote the metadata, because this library does not guess what was meant"
_FOLDER = "which other process writes to the folder or deletes from it, which only its owner knows"
_BUG = "It is a defect of this library, which the report helps to find."
_CALLER = "Only callers of the Python interface see it, and they give other actions."
_OTHER_COLUMN = "which column the owner wants instead, or whether the column can be dropped"

OPEN: Mapping[str, str] = {
    message: answer if answer.endswith(".") else str(ByPerson(answer))
    for message, answer in {
        r"set delta.checkpoint|set spark.sql.session|install PyArrow|commit through a Spark job|"
        r"copy it to a store": "The message names the setting.",
        r"create these tags": "from the operator of the catalog which tags the rules name",
        # The outcome of a write is not known.
        r"^CommitUnknownError": "whether the file that the message names is in the store",
        # Files and metadata of other engines.
        r"rewrite (the|this) .*(file|partition)|repair the file|use the engine that wr": _WROTE,
        r"examine them otherwise|see the report|see the Result for each": (
            "from the report, why each of the files was left out"
        ),
        r"percent-encoded": "which writer wrote the path",
        r"repair the (protocol|table's metadata)|column mapping metadata|schema string": _SETTINGS,
        r"checkpoint the table with the engine": _SETTINGS,
        r"use a release|newer release|release that|let the engine that cloned|use Delta Spark|"
        r"with Delta Spark|let Delta Spark|use an engine": (
            "which release or engine supports the table, because this one does not"
        ),
        r"drop the column|cluster by another column|drop these columns|rename it first|"
        r"cluster the table by": _OTHER_COLUMN,
        # Files that are lost.
        r"restore (it|them|the log|the files|missing)|restore this one": (
            "where a backup of the files is"
        ),
        r"retrieve (it|them)": "who may retrieve files from the archive, and at what cost",
        # Other processes.
        r"find the (other )?process|look for another process|find out what else writes": _FOLDER,
        r"find the writer whose clock|which writer ignore[sd]": (
            "which writer it is, by `commitInfo` in the commits that `history` shows"
        ),
        r"find the cause before": "why commits have no valid time, by `history`",
        r"request a version instead|request (one|version|retained)|compact up to|wait for one": (
            "The message names the versions that exist."
        ),
        # The surroundings.
        r"grant this user|rejects the request|file system cannot be opened|cannot do this": (
            "which rights and options the process has, by the tools of the store"
        ),
        r"make room|health of the disk": ("what fills or damages the disk"),
        r"move (the table|or remove)|into a folder of its own": (
            "where the owner of the table wants it"
        ),
        r"give its name in the catalog|give the new address|of Gravitino has the provider": (
            "the name or the address from the owner of the table"
        ),
        r"of the catalog|state the commits": "from the operator of the catalog what it supports",
        r"see the log for the details|report this": _BUG,
        r"^RefusedError: .*; (plan|run) again$": (
            "A new plan, or run, reads the new state, as in the situations above."
        ),
        # Requests.
        r"files of different partitions|render them as JSON|numRecords from the footer|"
        r"add the (required )?feature|list all features|suspend row tracking first|"
        r"materialized row ID columns|do not compact this|write a new one|write a new checkpoint": (
            _CALLER
        ),
        r"request sidecars|remove .* as well|leave out .*, or give both|put the file itself": (
            "The message names the other request."
        ),
        r"drop the table feature rowTracking": "Played above, as `repeated-row-id`.",
    }.items()
}
"""What a person must find out, and why no test can."""
