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

// Filters take effect while they are typed, without a history entry for every letter.
for (const field of document.querySelectorAll("[data-live]")) {
  let waiting;
  const submit = () => {
    const values = new URLSearchParams(new FormData(field.form));
    for (const [key, value] of [...values]) if (!value) values.delete(key);
    if (field.type === "search") sessionStorage.setItem("typing", String(field.selectionStart));
    location.replace(`${field.form.action}?${values}`);
  };
  field.addEventListener(field.type === "search" ? "input" : "change", () => {
    clearTimeout(waiting);
    waiting = setTimeout(submit, field.type === "search" ? 350 : 0);
  });
}

const typing = sessionStorage.getItem("typing");
if (typing !== null) {
  sessionStorage.removeItem("typing");
  const field = document.querySelector("input[data-live]");
  field?.focus();
  field?.setSelectionRange(Number(typing), Number(typing));
}
