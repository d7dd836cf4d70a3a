"""This library as an archive that is shipped with a job."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
_EPOCH = (1980, 1, 1, 0, 0, 0)


def library_zip() -> bytes:
    """A ZIP file of the package for `--py-files`: the same bytes for the same code.

    A wheel does not work: Spark adds `.zip` and `.egg` files to the path of its workers, and
    ignores a `.whl` file.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*")):
            if file.suffix in (".py", ".json") and file.is_file():
                name = file.relative_to(PACKAGE.parent).as_posix()
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
    return packed.getvalue()
