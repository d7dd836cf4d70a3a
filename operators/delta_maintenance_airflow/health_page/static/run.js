// The form for a manual run. The server draws its fields and checks what they contain; Airflow's API
// decides whether this user may trigger a Dag, and tells how the run goes.
document.getElementById("operation")?.addEventListener("change", ({ target }) => target.form.requestSubmit());

(async () => {
  const form = document.getElementById("run");
  if (!form) return;
  const { api, ui, check, approvals, table, uri, operation, manual, short, plansFirst } = form.dataset;
  const part = (id) => document.getElementById(id);
  const PLAN = "one_table.plan";
  const APPROVE = "one_table.approve";
  const RUN = "one_table.run";
  const PAUSE = 1500;

  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const say = (kind, ...parts) => {
    const state = part("state");
    state.replaceChildren(...parts);
    state.className = `note ${kind}`;
    state.hidden = !parts.length;
  };
  const ask = async (address, options = {}) => {
    const response = await fetch(address, { credentials: "same-origin", ...options });
    const body = await response.json().catch(() => ({}));
    if (response.ok) return body;
    const detail = typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail ?? "");
    throw Object.assign(new Error(detail), { status: response.status });
  };
  const send = (address, method, body) =>
    ask(address, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const leaving = (href, text) => {
    const link = element("a", { href, textContent: text });
    link.dataset.leave = "";
    return link;
  };

  // The Dags for manual runs, by their tag: Airflow lists those that this user may see.
  let dags;
  try {
    dags = (await ask(`${api}/dags?tags=${manual}&order_by=dag_id&limit=100`)).dags;
  } catch (error) {
    say("error", error.status === 403 ? "You may not see the Dags for manual runs. Ask an administrator of Airflow." : `Airflow did not answer: ${error.message || error.status || "no connection"}`);
    return;
  }
  if (!dags.length) {
    say("error", "There is no Dag for manual runs that you may see. An administrator can add one: call delta_maintenance_dags() in a file of the Dags folder.");
    return;
  }
  const shortens = (each) => each.tags.some((tag) => tag.name === short);
  // The Dags that may shorten a retention come last: they are chosen on purpose.
  dags.sort((a, b) => shortens(a) - shortens(b));
  const choice = part("dag");
  for (const each of dags) {
    choice.append(element("option", { value: each.dag_id, textContent: each.dag_id + (shortens(each) ? " (may shorten a retention)" : "") }));
  }
  const dag = () => dags.find((each) => each.dag_id === choice.value);
  const show = () => {
    part("dags").hidden = dags.length < 2;
    part("paused").hidden = !dag().is_paused;
    if (part("short")) part("short").hidden = !shortens(dag());
  };
  choice.addEventListener("change", show);
  show();
  part("buttons").hidden = false;
  say("");
  part("state").hidden = true;

  // Only what the user changed is sent: the rest is the policy's, also if it changes meanwhile.
  const inputs = () => [...form.querySelectorAll("[data-option]")].filter((each) => !each.closest("[hidden]"));
  const changed = () => {
    const found = {};
    for (const input of inputs()) {
      if (input.type === "checkbox") {
        if (input.checked !== input.defaultChecked) found[input.name] = input.checked;
      } else if ("lines" in input.dataset) {
        const lines = input.value.split("\n").map((line) => line.trim()).filter(Boolean);
        if (lines.length) found[input.name] = lines;
      } else if (input.value.trim()) {
        found[input.name] = input.value.trim();
      }
    }
    return found;
  };
  const complain = (name, text) => {
    const input = part(`option-${name}`);
    input.setAttribute("aria-invalid", "true");
    part(`problem-${name}`).textContent = text;
    part(`problem-${name}`).hidden = false;
    return input;
  };
  const calm = (input) => {
    input.removeAttribute("aria-invalid");
    part(`problem-${input.name}`).hidden = true;
  };
  form.addEventListener("input", ({ target }) => "option" in target.dataset && calm(target));

  // The options in the form, or null after showing its problems.
  const checked = async () => {
    const wrong = [];
    inputs().forEach(calm);
    for (const input of inputs()) {
      if (!input.checkValidity()) wrong.push(complain(input.name, input.required && !input.value ? "This is required." : input.validationMessage));
    }
    const answer = await send(check, "POST", { operation, options: changed(), short_retention: shortens(dag()) });
    for (const [name, text] of Object.entries(answer.problems)) {
      if (part(`problem-${name}`)) wrong.push(complain(name, text));
      else say("error", text);
    }
    for (const field of wrong) if (field.closest("details")) field.closest("details").open = true;
    wrong[0]?.focus();
    return wrong.length || Object.keys(answer.problems).length ? null : answer.options;
  };

  const RUN_PATH = /^\/dags\/([^/?#]+)\/dagRuns\/([^/?#]+)$/;
  const runAt = (path) => {
    const [, id, run] = RUN_PATH.exec(path);
    return { at: `${api}/dags/${id}/dagRuns/${run}`, page: `${ui}/${id}/runs/${run}` };
  };
  const trigger = async (options, planOnly) => {
    if (dag().is_paused && part("unpause").checked) {
      await send(`${api}/dags/${dag().dag_id}?update_mask=is_paused`, "PATCH", { is_paused: false });
      dag().is_paused = false;
      show();
    }
    const conf = { operation, table_uri: uri, options, plan_only: planOnly };
    const run = await send(`${api}/dags/${dag().dag_id}/dagRuns`, "POST", { logical_date: null, conf });
    return runAt(`/dags/${encodeURIComponent(dag().dag_id)}/dagRuns/${encodeURIComponent(run.dag_run_id)}`);
  };

  // Repeats a question about the tasks of a run until `found` answers.
  const until = async (run, found) => {
    const began = Date.now();
    for (;;) {
      const tasks = (await ask(`${run.at}/taskInstances?limit=100`)).task_instances;
      const state = (await ask(run.at)).state;
      const of = (name) => tasks.find((each) => each.task_id === name && (name === "tables" || each.map_index >= 0));
      const answer = found(of, state, Math.round((Date.now() - began) / 1000));
      if (answer) return answer;
      await new Promise((done) => setTimeout(done, PAUSE));
    }
  };
  const ended = (state) => ["success", "failed", "upstream_failed", "skipped"].includes(state);
  const returned = async (run, task) => {
    const at = `${run.at}/taskInstances/${task.task_id}/xcomEntries`;
    const known = await ask(`${at}?map_index=${task.map_index}&limit=100`);
    if (!known.xcom_entries.some((each) => each.key === "return_value")) return {};
    return (await ask(`${at}/return_value?map_index=${task.map_index}`)).value ?? {};
  };

  // The text of a plan is Markdown of one kind: sentences, and a table of facts in code spans.
  const plain = (text) => text.replaceAll("`", "").replace(/\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d):[\d.]+Z/g, "$1 $2 UTC").trim();
  const titled = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("-", " ");
  const drawn = (text) => {
    const lines = text.split("\n").filter((line) => line.trim());
    const facts = lines.filter((line) => line.startsWith("| ")).slice(2).map((line) => line.split("|").slice(1, -1).map(plain));
    const rows = facts.map(([name, value], at) => [at && facts[at - 1][0] === name ? "" : name, value]);
    return [
      ...lines.filter((line) => !line.startsWith("|")).map((line) => element("p", { textContent: plain(line) })),
      element("dl", { className: "pairs" }, ...rows.flatMap(([name, value]) => [element("dt", { textContent: titled(name) }), element("dd", { textContent: value })])),
    ];
  };

  let planned = null;
  const into = (stage) => {
    part("options").hidden = stage !== "options";
    part("buttons").hidden = stage !== "options";
    part("plan").hidden = stage !== "plan";
    part("decide").hidden = stage !== "plan" || !planned;
  };

  const plan = async () => {
    const options = await checked();
    if (!options) return;
    planned = null;
    say("", "Triggering …");
    const run = await trigger(options, true);
    const link = () => leaving(run.page, "its run in Airflow");
    const task = await until(run, (of, state, seconds) => {
      const [first, own] = [of("tables"), of(PLAN)];
      if (own && ended(own.state)) return own;
      if (first && ["failed", "upstream_failed"].includes(first.state)) return first;
      if (ended(state)) return own ?? first ?? { state };
      const doing = own?.state === "up_for_retry" ? "The plan failed, and is tried again" : own?.state === "running" ? "Planning" : "Waiting for a worker";
      say("", `${doing} … ${seconds} s, see `, link());
      return null;
    });
    const result = task.task_id === PLAN ? await returned(run, task) : {};
    const about = result.problem || (task.state === "success" ? "" : "See the log of the task.");
    part("plan").replaceChildren(
      element("h2", { textContent: task.state === "success" ? "The plan" : "There is no plan" }),
      ...(about ? [element("p", { className: "note error", textContent: about })] : []),
      ...(result.plan_text ? drawn(result.plan_text) : []),
    );
    if (task.state === "success" && !result.is_idle) planned = { options, approval: Boolean(result.needs_approval) };
    into("plan");
    part("decide").hidden = false;
    const go = part("decide").querySelector("[data-do=planned]");
    go.hidden = !planned;
    go.textContent = planned?.approval ? "Ask for the approval of this plan" : "Run this plan";
    const asks = planned?.approval ? "Somebody has to approve the plan before it runs. " : "";
    const done = result.is_idle ? "There is nothing to do. " : `Nothing was changed. ${asks}`;
    say(task.state === "success" ? "good" : "error", done, "See ", link(), ...(operation === "fsck" ? [", and the findings on ", element("a", { href: table, textContent: "the page of the table" })] : []), ".");
  };

  // Follows a run to its result, also after the page was loaded again.
  const follow = async (run) => {
    into("started");
    const link = () => leaving(run.page, "its run in Airflow");
    const task = await until(run, (of, state, seconds) => {
      const own = of(RUN);
      if (own && ended(own.state)) return own;
      if (ended(state)) return { state };
      const tasks = [PLAN, APPROVE, RUN].map(of);
      if (["deferred", "awaiting_input"].includes(tasks[1]?.state)) {
        say("warning", "It waits for approval: ", element("a", { href: approvals, textContent: "answer it" }), ", or see ", link(), ".");
      } else {
        const doing = tasks[2]?.state === "running" ? "Running" : tasks[0]?.state === "running" ? "Planning again" : "Waiting for a worker";
        say("", `${doing} … ${seconds} s, see `, link());
      }
      return null;
    });
    const result = task.task_id ? await returned(run, task) : {};
    const good = task.state === "success";
    part("plan").replaceChildren(element("h2", { textContent: "The result" }), ...(result.result_text ? drawn(result.result_text) : []));
    part("plan").hidden = !result.result_text;
    const skipped = task.state === "skipped" ? "It was not approved, and nothing was changed." : "It failed.";
    say(good ? "good" : "error", good ? "Done. See " : `${result.problem || skipped} See `, link(), " and ", element("a", { href: table, textContent: "the page of the table" }), ".");
  };

  const start = async (options) => {
    say("", "Triggering …");
    const run = await trigger(options, false);
    history.replaceState(null, "", `#${run.at.slice(api.length)}`);
    await follow(run);
  };

  const what = {
    plan,
    run: async () => {
      const options = await checked();
      if (options) await start(options);
    },
    planned: () => start(planned.options),
    follow: () => follow(runAt(location.hash.slice(1))),
    back: () => {
      into("options");
      say("");
      part("state").hidden = true;
    },
  };
  const act = async (name) => {
    const buttons = [...form.querySelectorAll("button")];
    buttons.forEach((button) => (button.disabled = true));
    try {
      await what[name]();
    } catch (error) {
      say("error", error.status === 403 ? "You may not trigger this Dag, or not see its runs." : `Airflow refused: ${error.message || error.status || "no connection"}`);
    }
    buttons.forEach((button) => (button.disabled = false));
    // Not before: a disabled button takes no focus.
    if (!part("decide").hidden) part("decide").querySelector("button:not([hidden])").focus();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act(event.submitter?.dataset.do ?? (plansFirst === undefined ? "run" : "plan"));
  });
  form.querySelector("[data-do=back]").addEventListener("click", () => act("back"));
  if (RUN_PATH.test(location.hash.slice(1))) act("follow");
})();
