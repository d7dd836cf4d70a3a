"""OpenLineage facets of a table: the dataset, its version, and the data that was written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delta_maintenance.address import Address, CatalogName, StoreKind, is_catalog_name
from delta_maintenance.errors import InvalidRequestError

if TYPE_CHECKING:
    # Part of a provider that is not a dependency.
    from airflow.providers.openlineage.extractors import OperatorLineage  # type: ignore[import-not-found]

RUN_FACET = "deltaMaintenance_run"
"""The facet of a run with the numbers and the status that are also in XCom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageFacts:
    """The facts that a task reports about its table."""

    table_uri: str
    catalog_name: str | None = None
    """The name of the table in its catalog; the dataset has it as a symbolic link."""
    written: bool = True
    """Whether the task has written to the table, or may have; otherwise it only read the table."""
    facts: Mapping[str, Any] | None = None
    """The facts in XCom; None before the end of the task."""
    results: Sequence[Mapping[str, Any]] = ()
    """The Results of its operations, as JSON."""


def catalog_name_in(name: str | None) -> str | None:
    """Returns the name of a table of a policy if it is the name in a catalog."""
    return name if name is not None and is_catalog_name(name) else None


class ReportsLineage:
    """An operator that reports its table to OpenLineage, if Airflow has the provider for it.

    Failed tasks report as well, because they may have written to the table.
    """

    def lineage(self) -> LineageFacts | None:
        """The facts so far; None without a table."""
        raise NotImplementedError

    def lineages(self) -> Sequence[LineageFacts]:
        """The facts of each table, of a task for several tables."""
        lineage = self.lineage()
        return [lineage] if lineage is not None else []

    def get_openlineage_facets_on_start(self) -> OperatorLineage | None:
        """Called by the OpenLineage provider when the task begins."""
        return _facets_of(self.lineages())

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage | None:
        """Called by the OpenLineage provider when the task has ended, successfully or not."""
        return _facets_of(self.lineages())


def dataset_name(table_uri: str) -> tuple[str, str] | None:
    """Returns namespace and name of a table by OpenLineage's naming rules for datasets.

    None for addresses without such a name: tables in memory, `az:` addresses, which do not name the
    account, and malformed ones, which may contain a secret.
    """
    try:
        address = Address.parse(table_uri)
    except InvalidRequestError:
        return None
    if address.is_local:
        return "file", os.path.abspath(address.path)
    scheme = _SCHEMES.get(address.kind)
    if scheme is None:
        return None
    authority = address.authority
    if address.kind is StoreKind.AZURE:
        # Both names of a host refer to the same files.
        authority = authority.replace(".blob.", ".dfs.", 1)
    if not _AUTHORITIES[scheme].fullmatch(authority):
        return None
    return f"{scheme}://{authority}", address.path.strip("/") or "/"


_SCHEMES = {StoreKind.S3: "s3", StoreKind.GCS: "gs", StoreKind.AZURE: "abfss"}
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")
_AUTHORITIES = {"s3": _BUCKET, "gs": _BUCKET, "abfss": re.compile(r"[a-z0-9$-]+@[a-z0-9.-]+")}


def _facets_of(tables: Sequence[LineageFacts]) -> OperatorLineage | None:
    facets_of_tables = [facets for facets in map(_facets, tables) if facets is not None]
    if len(facets_of_tables) < 2:
        return next(iter(facets_of_tables), None)
    from airflow.providers.openlineage.extractors import OperatorLineage

    # The run facet is about one table.
    return OperatorLineage(
        inputs=[dataset for facets in facets_of_tables for dataset in facets.inputs],
        outputs=[dataset for facets in facets_of_tables for dataset in facets.outputs],
    )


def _facets(lineage_facts: LineageFacts) -> OperatorLineage | None:
    try:
        from airflow.providers.common.compat.openlineage.facet import (
            InputDataset,
            OutputDataset,
            OutputStatisticsOutputDatasetFacet,
            RunFacet,
        )
        from airflow.providers.openlineage.extractors import OperatorLineage

        # The common provider has no class for this facet.
        from openlineage.client.facet_v2 import dataset_version_dataset  # type: ignore[import-not-found]
    except ImportError:
        return None

    facts = lineage_facts.facts or {}
    run_facets = {}
    if facts:
        small_facts = {name: value for name, value in facts.items() if _is_small(name, value)}
        run_facets[RUN_FACET] = RunFacet().with_additional_properties(**small_facts)
    dataset = dataset_name(lineage_facts.table_uri)
    if dataset is None:
        return OperatorLineage(run_facets=run_facets)
    namespace, name = dataset
    facets: dict[str, Any] = {}
    if lineage_facts.catalog_name is not None:
        from openlineage.client.facet_v2 import symlinks_dataset

        link = CatalogName.parse(lineage_facts.catalog_name)
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(
            [symlinks_dataset.Identifier(str(link.kind), link.pattern_text, "TABLE")]
        )
    if facts.get("version") is not None:
        version = str(facts["version"])
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(version)
    if not lineage_facts.written:
        read = InputDataset(namespace=namespace, name=name, facets=facets)
        return OperatorLineage(inputs=[read], run_facets=run_facets)
    statistics = {}
    if size := sum(result.get("bytes_written") or 0 for result in lineage_facts.results):
        statistics["outputStatistics"] = OutputStatisticsOutputDatasetFacet(
            size=size, fileCount=_files(lineage_facts.results)
        )
    written = OutputDataset(namespace=namespace, name=name, facets=facets, outputFacets=statistics)
    return OperatorLineage(outputs=[written], run_facets=run_facets)


def _is_small(name: str, value: Any) -> bool:
    return isinstance(value, int | float) or name in ("operation", "operations", "status")


def _files(results: Sequence[Mapping[str, Any]]) -> int | None:
    """Returns the number of written files; None if it is unknown."""
    written = [result for result in results if result.get("bytes_written")]
    if any("sidecars" not in result for result in written):
        return None
    return sum(1 + int(result["sidecars"]) for result in written)
