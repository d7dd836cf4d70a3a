// Runs before anything is painted: the page wears the theme of Airflow's pages around it.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  };
  const apply = () => {
    const theme = chosen();
    const night = theme === "dark" || (theme !== "light" && dark.matches);
    document.documentElement.dataset.theme = night ? "dark" : "light";
    document.dispatchEvent(new Event("theme"));
  };
  apply();
  dark.addEventListener("change", apply);
  // Other documents of the same origin, Airflow's among them, tell when it changes there.
  addEventListener("storage", (event) => event.key === "theme" && apply());
})();
