"""Definitions, found by Dagster."""
