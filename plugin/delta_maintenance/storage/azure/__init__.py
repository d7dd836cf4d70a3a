"""Azure Blob Storage."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, client="AzureClient AzureFailure")
