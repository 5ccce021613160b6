"use strict";
// Charts are Vega-Lite; tables sort, corruptions come and go, figures are saved. Nothing is loaded from elsewhere.
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const config = JSON.parse(document.getElementById("config").textContent);
  const views = new Map();

  const draw = async (place) => {
    const id = place.dataset.spec;
    // logLevel 1: errors; a chart of which everything is switched off is none.
    const options = { config, renderer: "svg", actions: false, tooltip: true, logLevel: 1 };
    const result = await vegaEmbed(place, specs[id], options);
    views.set(id, result.view);
  };
  const drawn = Promise.all(Array.from(document.querySelectorAll("[data-spec]"), draw));
  drawn.then(() => document.documentElement.setAttribute("data-drawn", "yes"));

  // Sorting: numbers by value, words by letter; the second click turns the order round.
  const key = (row, column) => {
    const order = row.cells[column].dataset.order;
    const value = Number(order);
    return order === "-inf" ? -Infinity : Number.isNaN(value) ? order : value;
  };
  const compare = (a, b) => (typeof a === typeof b && typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
  document.querySelectorAll("table.sortable").forEach((table) => {
    table.querySelectorAll("thead th").forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = Array.from(body.rows).sort((a, b) => compare(key(a, column), key(b, column)) * (down ? -1 : 1));
        body.append(...rows);
      });
    });
  });

  // Metric and corruptions that are shown.
  const boxes = Array.from(document.querySelectorAll("input[name=corruption]"));
  const metric = document.getElementById("metric");
  const signal = (name, value) =>
    ["severity", "heat"].filter((id) => views.has(id)).forEach((id) => views.get(id).signal(name, value).runAsync());
  const toggle = () => {
    const hidden = boxes.filter((box) => !box.checked).map((box) => box.value);
    signal("hidden", hidden);
    document.querySelectorAll("tr[data-corruption]").forEach((row) => {
      row.hidden = hidden.includes(row.dataset.corruption);
    });
  };
  const all = (checked) => () => {
    boxes.forEach((box) => { box.checked = checked; });
    toggle();
  };
  if (metric) {
    boxes.forEach((box) => box.addEventListener("change", toggle));
    document.getElementById("all-corruptions").addEventListener("click", all(true));
    document.getElementById("no-corruptions").addEventListener("click", all(false));
    metric.addEventListener("change", () => {
      signal("metric", metric.value);
      document.querySelectorAll("[data-metric]").forEach((part) => { part.hidden = part.dataset.metric !== metric.value; });
    });
  }

  // On paper charts are drawn anew, as wide as a column there, so that their letters keep their size.
  const ON_PAPER = 320;
  window.addEventListener("beforeprint", () => views.forEach((view) => view.signal("width", ON_PAPER).run()));
  window.addEventListener("afterprint", () => window.dispatchEvent(new Event("resize")));

  // Saving: black on white, whatever the page's colours are.
  const download = (name, address) => {
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
  };
  const asSvg = async (view) =>
    (await view.toSVG()).replaceAll("currentColor", "#1c2127").replace("<svg ", '<svg style="background:#fff" ');
  const asPng = async (view) => {
    const svg = await asSvg(view);
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * image.width;
    canvas.height = 2 * image.height;
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/png");
  };
  document.querySelectorAll("button[data-save]").forEach((button) => {
    button.addEventListener("click", async () => {
      await drawn;
      const view = views.get(button.dataset.of);
      const kind = button.dataset.save;
      const address = kind === "svg"
        ? `data:image/svg+xml;charset=utf-8,${encodeURIComponent(await asSvg(view))}` : await asPng(view);
      download(`${button.dataset.of}.${kind}`, address);
    });
  });
})();
