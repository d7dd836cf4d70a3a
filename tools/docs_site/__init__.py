"""The documentation site: the pages of `docs/`, with reference parts generated from the code.

`pages` collects the pages and fills in the generated parts; every other module makes one kind of
part. `tools/build_docs.py` calls them and runs the site generator.
"""
