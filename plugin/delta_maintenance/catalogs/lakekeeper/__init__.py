"""Lakekeeper: generic tables of warehouses."""
