"""Parquet files with an encrypted footer or column."""

from __future__ import annotations

import base64
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe


class Keys(pe.KmsClient):  # type: ignore[misc]  # untyped
    """Keys that are not actually wrapped."""

    def __init__(self) -> None:
        pe.KmsClient.__init__(self)

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64decode(key)


def encrypted(table: pa.Table, column: str, *, footer: bool) -> bytes:
    """Returns a Parquet file whose footer, or only a column, is encrypted."""
    factory = pe.CryptoFactory(lambda _: Keys())
    options = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": [column]}, plaintext_footer=not footer
    )
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), options)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return sink.getvalue()
