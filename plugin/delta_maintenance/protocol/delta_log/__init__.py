"""Files of `_delta_log`: their names, their content and which actions of them survive."""
