"""Files of `_delta_log`: names, contents, and log replay."""
