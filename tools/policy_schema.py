"""Write the JSON schema of the policy document, for editors, and the page of its keys.

    python tools/policy_schema.py

A test fails as long as docs/policy.schema.json or docs/reference/policy.md are not what this
writes. The page is in the repository, so that a checkout has it without the site.
"""

from __future__ import annotations

import json
from pathlib import Path

from delta_maintenance.policies.definition.policy import json_schema
from docs_site.policy import page

DOCS = Path(__file__).resolve().parent.parent / "docs"

if __name__ == "__main__":
    schema = json_schema()
    (DOCS / "policy.schema.json").write_text(json.dumps(schema, indent=2, ensure_ascii=True) + "\n")
    (DOCS / "reference" / "policy.md").write_text(page(schema))
