"""Print the JSON schema of the policy document, for editors.

    python tools/policy_schema.py > docs/policy.schema.json

A test fails as long as the file is not what this prints.
"""

from __future__ import annotations

import json
import sys

from delta_maintenance.policies.definition.policy import json_schema

if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2, ensure_ascii=True) + "\n")
