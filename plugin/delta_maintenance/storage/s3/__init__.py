"""S3 and stores that speak its API."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, client="S3Client S3Failure S3Options", store="S3Store")
