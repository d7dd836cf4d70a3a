"""Submission of Spark jobs: specification, files, and the requests of each platform.

Imports neither PySpark nor an orchestrator, so that all submitters can share it.
"""
