"""Files of `_delta_log`: names, contents, and log replay."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    file_names=(
        "Encoding LAST_CHECKPOINT LogFile LogFileKind SIDECAR_DIRECTORY checksum_name "
        "classic_checkpoint_name commit_name compaction_name hadoop_checksum_name "
        "multipart_checkpoint_name parse_log_file_name uuid_checkpoint_name"
    ),
    sidecars=(
        "ByteRange SCHEMA_TAG SUMMARY_TAG SUMS_TAG SidecarSummary most_sidecars stated_summary "
        "stated_sums"
    ),
    version_checksum=(
        "FileSizeHistogram Tally VersionChecksum deleted_record_counts differences is_consistent "
        "parse_checksum render_checksum"
    ),
)
