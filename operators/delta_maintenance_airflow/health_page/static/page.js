// What the pages do without a reload of their own.

// In Airflow's frame a link cannot leave by itself; one of the surrounding page can.
function leave(href) {
  const target = window.parent === window ? window : window.parent;
  const link = target.document.createElement("a");
  link.href = new URL(href, location.href).href;
  target.document.body.append(link);
  link.click();
  link.remove();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-leave]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    leave(link.href);
  }
});

// Filters take effect while they are typed, without a history entry for every letter. The answer of
// the server replaces everything around the search field. The field itself stays in the document,
// because letters that are typed during a navigation are lost.
let waiting;
let request;

function replaceSiblings(kept, fresh) {
  const siblings = [...fresh.parentNode.childNodes];
  const at = siblings.indexOf(fresh);
  while (kept.previousSibling) kept.previousSibling.remove();
  while (kept.nextSibling) kept.nextSibling.remove();
  kept.before(...siblings.slice(0, at));
  kept.after(...siblings.slice(at + 1));
}

async function filter(form, changed) {
  const values = new URLSearchParams(new FormData(form));
  for (const [key, value] of [...values]) if (!value) values.delete(key);
  const address = `${form.action}?${values}`;
  request?.abort();
  request = new AbortController();
  const { signal } = request;
  try {
    const response = await fetch(address, { signal });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (signal.aborted) return;
    const kept = form.querySelector("input[data-live]");
    const fresh = page.querySelector("input[data-live]");
    replaceSiblings(form, fresh.form);
    replaceSiblings(kept, fresh);
    history.replaceState(null, "", address);
    if (changed !== kept) form.elements[changed.name].focus();
  } catch {
    // An expired session, for example, is answered with another page.
    if (!signal.aborted) location.replace(address);
  }
}

document.addEventListener("input", ({ target }) => {
  if (!target.matches("[data-live]")) return;
  clearTimeout(waiting);
  waiting = setTimeout(filter, target.type === "search" ? 350 : 0, target.form, target);
});
