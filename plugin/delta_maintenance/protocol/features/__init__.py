"""Table features and table properties."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    registry=(
        "FEATURES FeatureKind Operation check_protocol find_feature misplaced_features "
        "require_supported supported_features supports with_requirements"
    ),
)
