"""`python -m delta_maintenance`: the command line, without the installed script."""

from __future__ import annotations

import sys

from delta_maintenance.cli.main import main

sys.exit(main())
