// The pictures of one table.
(() => {
  const section = document.querySelector("[data-pictures]");
  if (!section) return;
  const { commits, sizes, checkpoint, smallFileBytes } = JSON.parse(section.dataset.pictures);
  let charts = [];

  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const size = (number) => {
    let bytes = number;
    let unit = 0;
    while (bytes >= 1024 && unit < units.length - 1) {
      bytes /= 1024;
      unit += 1;
    }
    return `${bytes >= 100 || Number.isInteger(bytes) ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
  };
  const count = (number) => number.toLocaleString("en");
  const moment = (at) => `${new Date(at).toISOString().slice(0, 16).replace("T", " ")} UTC`;

  // How many commits a reader of each version replays; null before the first known checkpoint.
  const replay = () => {
    let last = checkpoint !== null && commits.length && checkpoint < commits[0].version ? checkpoint : null;
    if (commits.length && commits[0].version === 0) last = -1;
    return commits.map((commit) => {
      if (commit.checkpoint) last = commit.version;
      return last === null ? null : commit.version - last;
    });
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const axis = (title, extra = {}) => ({
    title: { display: true, text: title, color: colour("muted") },
    grid: { color: colour("line"), drawTicks: false },
    border: { display: false },
    ...extra,
    ticks: { color: colour("muted"), maxTicksLimit: 6, maxRotation: 0, padding: 6, ...extra.ticks },
  });

  // Ticks at round places: powers of two for bytes, full minutes, hours or days for time.
  const byteTicks = (scale) => {
    scale.ticks = [];
    for (let value = 1; value <= scale.max; value *= 4) if (value >= scale.min) scale.ticks.push({ value });
  };
  const minute = 60e3;
  const steps = [1, 5, 15, 30, 60, 180, 360, 720, 1440, 2880, 10080, 40320, 120960, 483840].map((n) => n * minute);
  const step = (span) => steps.find((each) => span / each <= 6) ?? span;
  const timeTicks = (scale) => {
    const each = step(scale.max - scale.min);
    scale.ticks = [];
    for (let value = Math.ceil(scale.min / each) * each; value <= scale.max; value += each) scale.ticks.push({ value });
  };
  const timeLabel = (span) => (value) => {
    const text = new Date(value).toISOString();
    if (span > 300 * 1440 * minute) return text.slice(0, 7);
    return step(span) >= 1440 * minute || text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
  };

  const draw = () => {
    charts.forEach((chart) => chart.destroy());
    charts = [];
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 12;
    Chart.defaults.color = colour("text");
    const options = {
      animation: false,
      responsive: true,
      maintainAspectRatio: false,
      interaction: { mode: "nearest", axis: "x", intersect: false },
    };
    const legend = {
      position: "bottom",
      align: "start",
      labels: { color: colour("text"), usePointStyle: true, boxHeight: 7, boxWidth: 7, padding: 14 },
    };
    const told = (commit) => `version ${count(commit.version)}${commit.operation ? ` · ${commit.operation}` : ""}`;

    const waiting = replay();
    const at = (kind) =>
      commits.map((c, i) => ({ x: c.version, y: waiting[i], i })).filter(({ y, i }) => commits[i][kind] && y !== null);
    charts.push(new Chart(document.getElementById("replay"), {
      data: {
        datasets: [
          { type: "line", label: "Commits to replay", data: commits.map((c, i) => ({ x: c.version, y: waiting[i], i })),
            borderColor: colour("blue"), backgroundColor: colour("blue-soft"), fill: "origin", borderWidth: 1.5, pointRadius: 0, stepped: false, order: 3 },
          { type: "scatter", label: "Checkpoint", data: at("checkpoint"), backgroundColor: colour("green"), borderColor: colour("panel"), borderWidth: 1.5, pointStyle: "circle", pointRadius: 5, order: 1 },
          { type: "scatter", label: "Log compaction", data: at("compaction"), backgroundColor: colour("amber"), borderColor: colour("panel"), borderWidth: 1.5, pointStyle: "rectRot", pointRadius: 6, order: 2 },
        ].filter((set) => set.data.length),
      },
      options: {
        ...options,
        scales: {
          x: axis("Version", { type: "linear", min: commits[0]?.version, max: commits.at(-1)?.version, ticks: { precision: 0, includeBounds: false, callback: (v) => count(v) } }),
          y: axis("Commits", { beginAtZero: true, ticks: { precision: 0 } }),
        },
        plugins: { legend, tooltip: { callbacks: {
          title: (items) => told(commits[items[0].raw.i]),
          label: (item) => (item.dataset.type === "scatter" ? item.dataset.label : `${count(item.raw.y)} to replay`),
          footer: (items) => moment(commits[items[0].raw.i].at),
        } } },
      },
    }));

    const first = commits[0]?.at ?? 0;
    const last = commits.at(-1)?.at ?? 0;
    const kinds = [
      ["Commit", "blue", "circle", 3, (c) => !c.checkpoint && !c.compaction],
      ["With checkpoint", "green", "circle", 5, (c) => c.checkpoint],
      ["With log compaction", "amber", "rectRot", 6, (c) => c.compaction && !c.checkpoint],
    ];
    charts.push(new Chart(document.getElementById("log"), {
      type: "scatter",
      data: {
        datasets: kinds.map(([label, name, pointStyle, pointRadius, is]) => ({
          label, pointStyle, pointRadius, backgroundColor: colour(name), borderColor: colour("panel"), borderWidth: 1,
          data: commits.filter(is).map((c) => ({ x: c.at, y: Math.max(1, c.bytes), commit: c })),
        })).filter((set) => set.data.length),
      },
      options: {
        ...options,
        scales: {
          x: axis("Time (UTC)", { type: "linear", min: first, max: last > first ? last : first + 1, afterBuildTicks: timeTicks, ticks: { callback: timeLabel(last - first) } }),
          y: axis("Bytes", { type: "logarithmic", afterBuildTicks: byteTicks, ticks: { callback: size } }),
        },
        plugins: { legend, tooltip: { callbacks: {
          title: (items) => told(items[0].raw.commit),
          label: (item) => size(item.raw.commit.bytes),
          footer: (items) => moment(items[0].raw.commit.at),
        } } },
      },
    }));

    // Empty buckets between the first and the last one belong to the shape.
    const shown = [];
    if (sizes.length) {
      const known = new Map(sizes.map((bucket) => [bucket.from, bucket]));
      for (let from = sizes[0].from; ; from = from ? from * 2 : sizes[1]?.from ?? Infinity) {
        if (from > sizes.at(-1).from) break;
        shown.push(known.get(from) ?? { from, files: 0, bytes: 0 });
      }
    }
    charts.push(new Chart(document.getElementById("sizes"), {
      type: "bar",
      data: {
        labels: shown.map((bucket) => size(bucket.from)),
        datasets: [{
          label: "Files", data: shown.map((bucket) => bucket.files), borderRadius: 2, categoryPercentage: 1, barPercentage: 0.92, maxBarThickness: 56,
          backgroundColor: shown.map((bucket) => colour(bucket.from < smallFileBytes ? "amber" : "blue")),
        }],
      },
      options: {
        ...options,
        scales: { x: axis("From this size", { grid: { display: false }, ticks: { maxTicksLimit: 12 } }), y: axis("Files", { beginAtZero: true, ticks: { precision: 0, callback: (v) => count(v) } }) },
        plugins: { legend: { display: false }, tooltip: { callbacks: {
          title: (items) => { const from = shown[items[0].dataIndex].from; return from ? `${size(from)} to ${size(from * 2)}` : "Empty"; },
          label: (item) => `${count(shown[item.dataIndex].files)} files, ${size(shown[item.dataIndex].bytes)}`,
        } } },
      },
    }));
    section.dataset.drawn = "";
  };

  draw();
  document.addEventListener("theme", draw);
})();
