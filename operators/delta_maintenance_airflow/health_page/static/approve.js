// Answers to several questions at once. Airflow's own API takes them, with the session of this user,
// checks the permission and records the person.
(() => {
  const form = document.getElementById("approvals");
  if (!form) return;
  const { airflow, scheduled, separate } = form.dataset;
  const every = document.getElementById("every");
  const until = document.getElementById("until");
  const boxes = () => [...form.querySelectorAll(".plans input:not(:disabled)")];
  const chosen = () => boxes().filter((box) => box.checked);
  const planOf = (box) => box.closest("li");
  const questionOf = (box) => box.closest(".question");

  const say = (place, text, kind = "") => {
    const result = place.querySelector(".result");
    result.textContent = text;
    result.className = `result ${kind}`;
  };
  const send = async (address, method, body) => {
    const response = await fetch(address, {
      method,
      credentials: "same-origin",
      headers: { "Content-Type": "application/json" },
      ...(body && { body: JSON.stringify(body) }),
    });
    const answer = await response.json().catch(() => ({}));
    if (response.ok) return answer;
    const detail = typeof answer.detail === "string" ? answer.detail : JSON.stringify(answer.detail ?? "");
    throw Object.assign(new Error(detail), { status: response.status });
  };

  const refresh = () => {
    const number = chosen().length;
    const plans = `${number} ${number === 1 ? "plan" : "plans"} chosen`;
    document.getElementById("chosen").textContent = number ? plans : "Choose plans.";
    for (const button of form.querySelectorAll("button[type=submit]")) button.disabled = !number;
    every.checked = number > 0 && number === boxes().length;
    every.disabled = !boxes().length;
  };
  every.addEventListener("change", () => {
    for (const box of boxes()) box.checked = every.checked;
    refresh();
  });
  form.addEventListener("change", refresh);
  // A browser keeps the boxes over a reload.
  for (const box of form.querySelectorAll(".plans input")) {
    box.checked = false;
  }
  refresh();

  const refusal = async (api, question, error) => {
    const { dag } = question.dataset;
    if (error.status === 401) return "You are not signed in any more: reload the page.";
    if (error.status === 403) return `Not allowed: Airflow does not let you answer the required actions of ${dag}.`;
    if (error.status === 404) return "The question is gone: its run was deleted.";
    if (error.status === 409) return closed(await send(api, "GET").catch(() => ({})));
    return `Airflow refused: ${error.message || error.status || "no connection"}`;
  };
  const closed = (known) => {
    const by = known.responded_by_user?.name ?? known.responded_by_user?.id;
    const answer = (known.chosen_options ?? []).join(", ");
    if (by) return `Already answered by ${by}: ${answer}.`;
    if (known.response_received) return `Expired: nobody answered in time${answer && `, which counts as ${answer}`}.`;
    return "The question is closed: its task no longer waits for an answer.";
  };
  const OPEN = ["awaiting_input", "deferred"];
  const ENDED = ["success", "failed", "skipped", "upstream_failed", "removed"];

  const DONE = { Approve: "Approved: its run begins now.", Reject: "Rejected.", Snooze: "Snoozed." };
  // The question that has just these plans by now, according to the page as it would be loaded now.
  const questionOnPage = async (plans) => {
    const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
    const known = plans.map((plan) => page.querySelector(`.plans li[data-plan="${CSS.escape(plan.dataset.plan)}"]`));
    const [api, ...others] = new Set(known.map((plan) => plan?.closest(".question").dataset.api));
    return others.length ? undefined : api;
  };
  // Waits for the question about plans that have none yet: of a run that has planned them, which asks
  // in a moment, or else of a run that is triggered for them.
  const PAUSE = 1500;
  const ask = async (plans, tell) => {
    const tables = [...new Set(plans.map((plan) => plan.dataset.uri))];
    const dag = `${airflow}/api/v2/dags/${encodeURIComponent(scheduled)}`;
    if ((await send(dag, "GET")).is_paused) throw new Error(`the Dag ${scheduled} is paused`);
    const began = Date.now();
    const questionOfRun = async ({ dag_run_id: run }) => {
      const at = `${dag}/dagRuns/${encodeURIComponent(run)}`;
      for (;;) {
        const task = await send(`${at}/taskInstances/approve`, "GET");
        if (OPEN.includes(task.state)) return `${at}/taskInstances/approve/-1/hitlDetails`;
        const { state } = await send(at, "GET");
        if (ENDED.includes(task.state) || ENDED.includes(state)) return undefined;
        tell(`A run asks about it, which your answer then closes … ${Math.round((Date.now() - began) / 1000)} s`);
        await new Promise((done) => setTimeout(done, PAUSE));
      }
    };
    for (const run of (await send(`${dag}/dagRuns?state=running`, "GET")).dag_runs) {
      const api = (await questionOfRun(run)) && (await questionOnPage(plans));
      if (api) return { api };
    }
    const run = await send(`${dag}/dagRuns`, "POST", { logical_date: null, conf: { tables } });
    const api = await questionOfRun(run);
    if (api) return { api, triggered: true };
    throw new Error(`the run ${run.dag_run_id} did not ask, because another question of the Dag is open or the plan is no longer due`);
  };

  const answer = async (question, plans, option) => {
    const { requested, own } = question.dataset;
    const tell = (text, kind) => plans.forEach((plan) => say(plan, text, kind));
    let { api } = question.dataset;
    let triggered = false;
    if (!api) {
      try {
        ({ api, triggered } = await ask(plans, tell));
        question.dataset.api = api;
      } catch (error) {
        const missing = error.status === 404 && `This Airflow has no Dag ${scheduled}.`;
        return tell(error.status === 403 ? `You may not trigger ${scheduled}.` : missing || `No question could be opened: ${error.message || error.status || "no connection"}.`, "bad");
      }
      if (triggered && separate !== undefined && option === "Approve") return tell("Asked: another person has to approve, because you triggered the run that asks.", "bad");
    }
    if (own !== undefined && option === "Approve") return tell("You triggered this run, so another person has to approve.", "bad");
    if (requested !== undefined && option === "Snooze") return tell("A person requested this plan: approve it, or reject it.", "bad");
    const labels = plans.map((plan) => plan.dataset.label);
    const shown = plans.map((plan) => plan.dataset.plan);
    const input = requested === undefined ? { plans: labels, snooze_until: (option === "Snooze" && until.value) || null, shown } : { shown };
    tell("Answering …");
    try {
      // Airflow also takes an answer for a task that has ended, which nothing reads.
      const known = await send(api, "GET");
      if (known.response_received || !OPEN.includes(known.task_instance?.state)) {
        tell(closed(known), "bad");
        plans = [];
      } else await send(api, "PATCH", { chosen_options: [option], params_input: input });
    } catch (error) {
      tell(await refusal(api, question, error), "bad");
      if (![404, 409].includes(error.status)) return;
      plans = [];
    }
    for (const plan of question.querySelectorAll("li")) {
      const box = plan.querySelector("input");
      if (plans.includes(plan)) {
        box.checked = false;
        box.disabled = true;
        say(plan, DONE[option], "good");
      } else if (requested !== undefined) box.disabled = true;
    }
    // The other plans wait without a question: an answer to them opens one.
    delete question.dataset.api;
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const option = event.submitter?.value ?? "";
    if (!(option in DONE)) return;
    const questions = new Map();
    for (const box of chosen()) questions.set(questionOf(box), [...(questions.get(questionOf(box)) ?? []), planOf(box)]);
    for (const button of form.querySelectorAll("button")) button.disabled = true;
    for (const [question, plans] of questions) await answer(question, plans, option);
    refresh();
  });
})();
