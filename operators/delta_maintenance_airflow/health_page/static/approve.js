// Answers to several questions at once. Airflow's own API takes them, with the session of this user,
// checks the permission and records the person.
(() => {
  const form = document.getElementById("approvals");
  if (!form) return;
  const { airflow, scheduled } = form.dataset;
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
    box.disabled = !questionOf(box).dataset.api;
  }
  refresh();

  const refusal = async (question, error) => {
    const { api, dag } = question.dataset;
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

  const DONE = { Approve: "Approved: its run begins now.", Reject: "Rejected.", Snooze: "Snoozed." };
  const answer = async (question, plans, option) => {
    const { api, requested, own } = question.dataset;
    const tell = (text, kind) => plans.forEach((plan) => say(plan, text, kind));
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
      tell(await refusal(question, error), "bad");
      if (![404, 409].includes(error.status)) return;
      plans = [];
    }
    for (const plan of question.querySelectorAll("li")) {
      const box = plan.querySelector("input");
      box.checked = false;
      box.disabled = true;
      if (plans.includes(plan)) say(plan, DONE[option], "good");
      else if (!plan.querySelector(".result").textContent) say(plan, "Not chosen: the next run asks again.");
    }
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const option = event.submitter?.value ?? "";
    if (!(option in DONE)) return;
    const questions = new Map();
    for (const box of chosen()) questions.set(questionOf(box), [...(questions.get(questionOf(box)) ?? []), planOf(box)]);
    for (const button of form.querySelectorAll("button")) button.disabled = true;
    for (const [question, plans] of questions) await answer(question, plans, option);
    const ask = document.getElementById("ask");
    if (ask) ask.disabled = false;
    refresh();
  });

  document.getElementById("ask")?.addEventListener("click", async ({ target }) => {
    const plans = [...target.closest(".question").querySelectorAll("li")];
    const place = target.parentElement;
    target.disabled = true;
    say(place, "Triggering …");
    try {
      const tables = [...new Set(plans.map((plan) => plan.dataset.uri))];
      const run = await send(`${airflow}/api/v2/dags/${scheduled}/dagRuns`, "POST", { logical_date: null, conf: { tables } });
      say(place, `Triggered ${run.dag_run_id}: it asks as soon as it has assessed the tables, unless another question of this Dag is open.`, "good");
    } catch (error) {
      target.disabled = false;
      const missing = error.status === 404 && `This Airflow has no Dag ${scheduled}.`;
      say(place, error.status === 403 ? `You may not trigger ${scheduled}.` : missing || `Airflow refused: ${error.message || error.status || "no connection"}`, "bad");
    }
  });
})();
