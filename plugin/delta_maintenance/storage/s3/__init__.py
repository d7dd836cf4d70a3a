"""S3 and stores that speak its API."""

from delta_maintenance.renamed_modules import forward_names

__getattr__ = forward_names(__name__, "delta_maintenance.storage.s3.store")
