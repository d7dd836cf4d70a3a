"""The endpoint for metrics: who may read it, what it says, and what a scrape costs."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from delta_maintenance.policies.assessments import AssessmentStore
from delta_maintenance.testing.fault_store import Fault, FaultStore, faults
from delta_maintenance_airflow import settings
from delta_maintenance_airflow.health_page.metrics import (
    FRESH_SECONDS,
    OLDEST_SECONDS,
    KeptText,
    add_metrics,
)
from delta_maintenance_airflow.plugin import URL_PREFIX
from tests.support.orchestrators.health_site import Site, token
from tests.support.tables.assessed_tables import assessment, fill, run_result, waiting
