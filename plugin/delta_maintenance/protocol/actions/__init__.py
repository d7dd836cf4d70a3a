"""Actions of the log: their fields, file actions as columns, paths and deletion vectors."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    deletion_vectors=(
        "DeletionVectorDescriptor STORED_ABSOLUTE decode_bitmap encode_bitmap load "
        "read_from_file unique_ids write_file z85_decode z85_encode"
    ),
    model="CheckpointMetadata CommitInfo DomainMetadata Metadata Protocol Sidecar Txn",
)
