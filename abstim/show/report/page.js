"use strict";
// Draws the charts, colours them for the page's scheme, and lets the keyboard do what the mouse can.
(() => {
  const page = document.documentElement;
  const { document: content, roots } = JSON.parse(document.getElementById("data").textContent);
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("scheme");
  const isDark = () => (page.dataset.scheme ? page.dataset.scheme === "dark" : system.matches);

  // What each kind of Bokeh model needs to be legible on the page.
  const colors = (ink, line) => ({
    text: { text_color: ink },
    axis: { axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: line },
    grid: { grid_line_color: line, grid_line_alpha: 0.35 },
    legend: { label_text_color: ink },
    bar: { title_text_color: ink, major_label_text_color: ink },
  });
  const kinds = { Title: "text", Text: "text", LinearAxis: "axis", LogAxis: "axis", CategoricalAxis: "axis", Grid: "grid", Legend: "legend", ColorBar: "bar" };

  // The button names the scheme that it turns to; there are pages without a chart.
  function label() {
    button.setAttribute("aria-pressed", String(isDark()));
    button.textContent = isDark() ? "Light" : "Dark";
  }
  let repaint = label;
  label();
  system.addEventListener("change", () => repaint());
  button.addEventListener("click", () => {
    page.dataset.scheme = isDark() ? "light" : "dark";
    repaint();
  });

  function paint(models) {
    label();
    const style = getComputedStyle(page);
    const wanted = colors(style.getPropertyValue("--ink").trim(), style.getPropertyValue("--soft").trim());
    for (const model of models) {
      const kind = kinds[model.type];
      if (kind) model.setv(wanted[kind]);
    }
  }

  function choose(select, figure) {
    const option = select.selectedOptions[0];
    const axes = JSON.parse(option.dataset.axes);
    for (const renderer of figure.renderers) {
      if (renderer.name) renderer.visible = renderer.name === option.value;
    }
    if (axes.x_factors.length) figure.x_range.factors = axes.x_factors;
    if (axes.y_factors.length) figure.y_range.factors = axes.y_factors;
    figure.below[0].axis_label = axes.x_label;
    figure.left[0].axis_label = axes.y_label;
  }

  // Moves by a fifth of what is shown; on a logarithmic axis of its logarithm.
  function shift(figure, axis, move, zoom) {
    const range = figure[`${axis}_range`];
    const log = figure[`${axis}_scale`].type === "LogScale";
    const [low, high] = [range.start, range.end].map((value) => (log ? Math.log(value) : value));
    const [middle, half] = [(low + high) / 2 + (move * (high - low)) / 5, (zoom * (high - low)) / 2];
    const [start, end] = [middle - half, middle + half].map((value) => (log ? Math.exp(value) : value));
    range.setv({ start, end });
  }

  const moves = { ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowDown: ["y", -1], ArrowUp: ["y", 1] };
  function press(event, figure) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (moves[event.key]) shift(figure, ...moves[event.key], 1);
    else if (event.key === "+" || event.key === "-") for (const axis of ["x", "y"]) shift(figure, axis, 0, event.key === "+" ? 0.8 : 1.25);
    else if (event.key === "0") figure.reset.emit();
    else return;
    event.preventDefault();
  }

  // Bokeh makes a layer inside each chart focusable, without a name; the chart around it already is, with one.
  function skipInnerLayers(root) {
    for (const element of root.querySelectorAll("*")) {
      if (element.classList.contains("bk-events")) element.removeAttribute("tabindex");
      if (element.shadowRoot) skipInnerLayers(element.shadowRoot);
    }
  }

  async function draw() {
    const ids = Object.keys(roots);
    await Bokeh.embed.embed_items({ report: content }, [{ docid: "report", roots, root_ids: ids }]);
    const drawn = Bokeh.documents[0];
    const figures = Object.fromEntries(drawn.roots().map((figure) => [roots[figure.id], figure]));
    repaint = () => paint(drawn.all_models);
    repaint();
    for (const [place, figure] of Object.entries(figures)) {
      document.getElementById(place).addEventListener("keydown", (event) => press(event, figure));
    }
    for (const select of document.querySelectorAll("select[data-chart]")) {
      select.addEventListener("change", () => choose(select, figures[select.dataset.chart]));
    }
    const done = () => {
      skipInnerLayers(document);
      requestAnimationFrame(() => (page.dataset.drawnMs = String(Math.round(performance.now()))));
    };
    if (drawn.is_idle) done();
    else drawn.idle.connect(done);
  }

  if (Object.keys(roots).length) draw();
  else page.dataset.drawnMs = "0";
})();
