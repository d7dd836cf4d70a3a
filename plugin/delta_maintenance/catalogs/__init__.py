"""Tables by name: one client per kind of catalog, names, and credentials that catalogs vend.

A catalog names tables, says where they are and who owns them, and may vend credentials for them. A
kind of catalog is one module or package here, which implements `catalog.Catalog`; `open` finds it.
"""
