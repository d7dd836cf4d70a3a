"""Commit files as text: lines of JSON to Arrow columns."""
