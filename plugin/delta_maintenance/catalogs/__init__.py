"""Tables by name: one client per kind of catalog, names, and credentials that catalogs vend.

A catalog names tables, says where they are and who owns them, and may vend credentials for them. A
kind of catalog is one module or package here, which implements `catalog.Catalog`; `open` finds it.
"""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    catalog=(
        "Aspect Catalog CatalogFailure CatalogListing CatalogTable RatifiedCommit ManagedState "
        "PartFilter PassedOver VendedCredentials catalog_error open_catalog"
    ),
    credentials="CredentialSource source_of",
)
