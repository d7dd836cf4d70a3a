// The form of the manual Dag: drawn from its own parameters, filled in, and sent to Airflow's API,
// which decides whether this user may.
(async () => {
  const form = document.getElementById("run");
  const state = document.getElementById("state");
  const fields = document.getElementById("fields");
  const { api, ui, values } = form.dataset;
  const given = JSON.parse(values);

  const say = (text, kind = "") => {
    state.textContent = text;
    state.className = `note ${kind}`;
    state.hidden = !text;
  };
  const ask = async (path, options = {}) => {
    const response = await fetch(api + path, { credentials: "same-origin", ...options });
    const body = await response.json().catch(() => ({}));
    if (response.ok) return body;
    const detail = typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail ?? "");
    throw Object.assign(new Error(detail), { status: response.status });
  };
  const send = (path, method, body) =>
    ask(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

  let dag;
  try {
    dag = await ask("/details");
  } catch (error) {
    const name = ui.split("/").at(-1);
    say(
      error.status === 404
        ? `This Airflow has no Dag ${name}: call delta_maintenance_dags() in a file of its Dags folder.`
        : error.status === 403
          ? `You may not see the Dag ${name}. Ask an administrator of Airflow.`
          : `Airflow did not answer: ${error.message || error.status || "no connection"}`,
      "error",
    );
    return;
  }

  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  // One field for each parameter, by its JSON schema; reads back what the schema asks for.
  const readers = {};
  const typesOf = (schema) => [schema.type ?? []].flat();
  const input = (name, schema, value) => {
    const types = typesOf(schema);
    const optional = types.includes("null") || !types.length;
    const whole = types.includes("integer");
    if (schema.enum) {
      const select = element("select");
      for (const [index, option] of schema.enum.entries()) {
        const label = option === null ? "–" : schema.values_display?.[option] ?? String(option);
        select.append(element("option", { value: index, textContent: label, selected: option === value }));
      }
      readers[name] = () => schema.enum[Number(select.value)];
      return select;
    }
    if (types.includes("boolean")) {
      const box = element("input", { type: "checkbox", checked: Boolean(value) });
      readers[name] = () => box.checked;
      return box;
    }
    if (whole || types.includes("number")) {
      const number = element("input", { type: "number", value: value ?? "", required: !optional, step: whole ? 1 : "any" });
      if (schema.minimum !== undefined) number.min = schema.minimum;
      if (schema.maximum !== undefined) number.max = schema.maximum;
      readers[name] = () => (number.value === "" ? null : Number(number.value));
      return number;
    }
    const items = schema.items?.type ?? "string";
    if (types.includes("array") && items === "string") {
      const lines = element("textarea", { rows: 3, value: (value ?? []).join("\n"), required: Boolean(schema.minItems) });
      readers[name] = () => lines.value.split("\n").map((line) => line.trim()).filter(Boolean);
      return lines;
    }
    if (types.includes("object") || types.includes("array")) {
      const text = element("textarea", { rows: 4, spellcheck: false, value: value === null ? "" : JSON.stringify(value, null, 2), required: !optional });
      readers[name] = () => {
        text.setCustomValidity("");
        try {
          return text.value.trim() ? JSON.parse(text.value) : null;
        } catch (error) {
          text.setCustomValidity(`This is not JSON: ${error.message}`);
          return null;
        }
      };
      return text;
    }
    const text = element("input", { type: "text", value: value ?? "", required: !optional, spellcheck: false });
    if (schema.maxLength) text.maxLength = schema.maxLength;
    if (schema.pattern) text.pattern = schema.pattern;
    readers[name] = () => (text.value === "" && optional ? null : text.value);
    return text;
  };

  for (const [name, parameter] of Object.entries(dag.params ?? {})) {
    const schema = parameter?.schema ?? {};
    if ("const" in schema) continue;
    const value = name in given ? given[name] : parameter?.value ?? null;
    const field = input(name, schema, value);
    field.id = `field-${name}`;
    const label = element("label", { htmlFor: field.id, textContent: schema.title ?? name });
    const help = parameter?.description ?? schema.description ?? schema.description_md;
    const row = element("div", { className: "field" }, label, field);
    if (name in given) row.classList.add("filled");
    // Airflow's own form shows these texts as Markdown, of which they only use code.
    if (help) row.append(element("small", {}, ...help.split("`").map((part, index) => (index % 2 ? element("code", { textContent: part }) : part))));
    fields.append(row);
  }
  const unpause = element("input", { type: "checkbox", id: "unpause", checked: true });
  if (dag.is_paused) {
    fields.append(element("div", { className: "field" },
      element("label", { htmlFor: "unpause", textContent: "Unpause" }), unpause,
      element("small", { textContent: "The Dag is paused: a run would wait." })));
  }

  const configuration = () => Object.fromEntries(Object.entries(readers).map(([name, read]) => [name, read()]));
  const preview = document.querySelector("#configuration pre");
  const refresh = () => (preview.textContent = JSON.stringify(configuration(), null, 2));
  form.addEventListener("input", refresh);
  refresh();
  document.getElementById("buttons").hidden = false;
  document.getElementById("configuration").hidden = false;
  say("");

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const conf = configuration();
    if (!form.reportValidity()) return;
    const button = form.querySelector("button[type=submit]");
    button.disabled = true;
    say("Triggering …");
    try {
      if (dag.is_paused && unpause.checked) await send("?update_mask=is_paused", "PATCH", { is_paused: false });
      const run = await send("/dagRuns", "POST", { logical_date: null, conf });
      say(`Triggered: ${run.dag_run_id}`, "good");
      leave(`${ui}/runs/${encodeURIComponent(run.dag_run_id)}`);
    } catch (error) {
      button.disabled = false;
      say(error.status === 403 ? "You may not trigger this Dag." : `Airflow refused: ${error.message || error.status}`, "error");
    }
  });
})();
