"""Spark jobs from outside: what they are told, how they travel and how each platform is asked.

Imports neither PySpark nor an orchestrator, so that all who submit can share it.
"""
