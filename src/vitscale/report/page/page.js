"use strict";
// Draws the figures from the page's own data and makes legend, table and theme work. Loads nothing from elsewhere.
(() => {
  const root = document.documentElement;
  root.dataset.scriptErrors = "0";
  addEventListener("error", (event) => {
    root.dataset.scriptErrors = String(Number(root.dataset.scriptErrors) + 1);
    root.dataset.scriptError = event.message;
  });
  const page = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const config = { displayModeBar: false, responsive: true, doubleClick: "reset" };
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  let printing = false;

  // --- theme: plotly's colours are values, so dark ones are put in for light ones -------------------------------
  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const recoloured = (value, table) => {
    if (typeof value === "string") return table[value] ?? value;
    if (Array.isArray(value)) return value.map((item) => recoloured(item, table));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, recoloured(item, table)]));
    }
    return value;
  };
  const themed = (figure) => recoloured(figure, isDark() ? page.dark : {});

  // --- plots ----------------------------------------------------------------------------------------------------
  const panels = new Map(page.panels.map((panel) => [panel.name, panel]));
  const hidden = new Map(); // figure -> groups that the legend has switched off or on
  const visible = (trace, figure) => {
    const chosen = hidden.get(figure)?.get(trace.legendgroup);
    return chosen === undefined ? trace.visible ?? true : chosen;
  };
  // On a phone the names of rows break after their first part, so that the bars keep half of the width.
  const narrow = (frame) => {
    const rows = frame.yaxis.categoryarray;
    const names = rows.map((row) => row.replaceAll("<br>", " ").replace(", ", ",<br>"));
    frame.yaxis = { ...frame.yaxis, tickmode: "array", tickvals: rows, ticktext: names };
    if (names.some((name) => name.includes("<br>"))) frame.height = Math.max(frame.height, 60 + 34 * rows.length);
  };
  const drawn = (panel, plot) => {
    const { data, layout } = themed(panel);
    const figure = plot.closest("figure")?.id;
    const frame = { ...layout, showlegend: false, dragmode: touch ? false : "zoom" };
    if (plot.clientWidth < 480 && layout.yaxis.type === "category") narrow(frame);
    plot.style.height = `${frame.height}px`;
    return [data.map((trace) => ({ ...trace, visible: visible(trace, figure) })), frame];
  };
  const draw = (plot) => Plotly.react(plot, ...drawn(panels.get(plot.dataset.panel), plot), config);
  const drawAll = () => all(".plot[data-panel]").forEach(draw);

  for (const key of all(".key")) {
    key.addEventListener("click", () => {
      const figure = key.closest("figure");
      const on = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", String(on));
      const groups = hidden.get(figure.id) ?? new Map();
      hidden.set(figure.id, groups.set(key.dataset.group, on ? true : "legendonly"));
      all(".plot[data-panel]", figure).forEach(draw);
    });
  }

  // --- files ----------------------------------------------------------------------------------------------------
  const save = (name, url) => {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  };
  const image = (plot, format) => {
    const panel = panels.get(plot.dataset.panel);
    const [data, layout] = drawn(panel, plot);
    const background = isDark() ? "#14171b" : "#ffffff";
    const frame = { ...layout, showlegend: panel.legend, paper_bgcolor: background, title: { text: panel.title, x: 0.02 } };
    const margin = { ...layout.margin, t: 48 };
    const height = layout.height + (panel.legend ? 80 : 40);
    const shown = data.filter((trace) => trace.visible !== "legendonly");
    return Plotly.toImage({ data: shown, layout: { ...frame, margin } }, { format, width: 800, height, scale: 2 });
  };
  for (const button of all("[data-save]")) {
    button.addEventListener("click", async () => {
      const plot = button.closest(".panel").querySelector(".plot");
      save(`${plot.dataset.panel}.${button.dataset.save}`, await image(plot, button.dataset.save));
    });
  }
  for (const button of all("[data-csv]")) {
    button.addEventListener("click", () => {
      const url = URL.createObjectURL(new Blob([page.csv], { type: "text/csv" }));
      save("cases.csv", url);
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    });
  }

  // --- table of cases: sort and filter --------------------------------------------------------------------------
  const body = document.querySelector(".cases tbody");
  const sortBy = (header, index) => {
    const up = header.getAttribute("aria-sort") !== "ascending";
    all(".cases thead th").forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => row.cells[index].dataset.value ?? row.cells[index].textContent;
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === ""); // what was not measured comes last, either way
      const numbers = Number(x) - Number(y);
      return (Number.isNaN(numbers) ? x.localeCompare(y) : numbers) * (up ? 1 : -1);
    };
    body.append(...[...body.rows].sort(order));
  };
  for (const header of all(".cases thead th")) {
    header.querySelector("button").addEventListener("click", () => sortBy(header, Number(header.dataset.at)));
  }
  document.getElementById("filter")?.addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) {
      const text = `${row.cells[0].textContent} ${row.cells[0].title}`.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    }
  });

  // --- every update of one case ---------------------------------------------------------------------------------
  const chosen = document.getElementById("steps-case");
  const drawSteps = () => {
    const plot = document.getElementById("steps");
    if (!plot) return;
    const [name, every, repeats] = page.steps[Number(chosen.value)];
    const colours = ["#2f6db5", "#cf6a24", "#2e8b6f", "#8a5bb0", "#b0452a", "#2b8ba3"];
    const data = repeats.map((values, index) => ({
      type: "scatter", mode: "lines", name: `repeat ${index + 1}`, line: { width: 1.4, color: colours[index % 6] },
      x: values.map((_, i) => Math.round(i * every) + 1), y: values,
      hovertemplate: `repeat ${index + 1}, update %{x}<br>%{y} ms<extra></extra>`,
    }));
    const layout = { ...page.steps_layout, showlegend: false, dragmode: touch ? false : "zoom" };
    const { data: d, layout: l } = themed({ data, layout });
    plot.setAttribute("aria-label", `Step time of each counted update of ${name}`);
    Plotly.react(plot, d, l, config);
  };
  chosen?.addEventListener("change", drawSteps);

  // --- theme button, paper --------------------------------------------------------------------------------------
  const redraw = () => { drawAll(); drawSteps(); };
  const button = document.getElementById("theme");
  const nameTheme = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button?.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
    redraw();
  });
  prefersDark.addEventListener("change", () => { nameTheme(); redraw(); });
  addEventListener("beforeprint", () => {
    printing = true;
    root.classList.add("printing");
    redraw();
    all(".js-plotly-plot").forEach((plot) => Plotly.relayout(plot, { width: plot.clientWidth }));
  });
  addEventListener("afterprint", () => {
    printing = false;
    root.classList.remove("printing");
    redraw();
    all(".js-plotly-plot").forEach((plot) => Plotly.relayout(plot, { width: null, autosize: true }));
  });

  nameTheme();
  redraw();
  root.dataset.ready = "true";
})();
