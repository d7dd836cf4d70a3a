"""Commits that change protocol, properties or constraints."""
