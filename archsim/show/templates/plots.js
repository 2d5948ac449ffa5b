// Draws every figure of the class "plot" when it comes into view, in the colours and at the width of the page.
// Fields that are chosen in one figure, and what a click highlights, hold for all figures of the page. What is chosen in
// the timeline of layer-steps is what the map, the waterfall and the traffic show; a die of the map filters the timeline.
(() => {
  const views = new Map();
  const chosen = {};
  const expanded = ({ columns, rows }) => rows.map((row) => Object.fromEntries(columns.map((name, at) => [name, row[at]])));
  const share = (name, value, from) => {
    chosen[name] = value;
    for (const view of views.values()) {
      if (view === from) continue;
      try { if (view.signal(name) !== value) view.signal(name, value).runAsync(); } catch { /* it has no such field */ }
    }
  };
  const lines = (text, most) => text.split(" ").reduce((found, word) => {
    const last = found.at(-1);
    return last && last.length + word.length < most ? [...found.slice(0, -1), `${last} ${word}`] : [...found, word];
  }, []);
  const specOf = (figure, less) => {
    const style = getComputedStyle(figure);
    const text = figure.querySelector("script").textContent.replace(/"(--[a-z0-9-]+)"/g, (_, name) => JSON.stringify(style.getPropertyValue(name).trim()));
    const spec = JSON.parse(text), plan = spec.usermeta, inner = spec.spec ?? spec;
    for (const [name, data] of Object.entries(spec.datasets)) spec.datasets[name] = data.columns ? expanded(data) : data;
    const room = figure.clientWidth - 4;
    const most = Math.max(1, Math.min(plan.panels, Math.floor(room / plan.least)));
    const columns = Math.ceil(plan.panels / Math.ceil(plan.panels / most));
    if (spec.spec) spec.columns = columns;
    inner.width = Math.max(120, Math.floor((room - less) / columns - plan.left - 24));
    if (plan.ratio) {
      inner.width = Math.min(inner.width, Math.max(240, 520 / Math.max(plan.ratio, 0.8)));
      inner.height = Math.round(inner.width * plan.ratio);
    }
    for (const layer of inner.layer) {  // a title that is longer than the axis stands in lines
      const axis = layer.encoding?.x?.axis;
      if (axis?.title?.length) axis.title = lines(axis.title, (inner.width + plan.left / 2) / 5.6);
    }
    if (spec.facet) {
      const longest = Math.max(...spec.facet.sort.map((name) => String(name).length));
      spec.facet.header.labelFontSize = Math.max(8, Math.min(12, (room / columns - plan.left) / (0.6 * longest)));
    }
    spec.config.legend.columns = Math.max(1, Math.floor((room - plan.left) / plan.entry));
    if (room < 520) spec.config.axisX = { titleAnchor: "end" };
    for (const param of spec.params) if (param.name in chosen && (!param.bind?.options || param.bind.options.includes(chosen[param.name]))) param.value = chosen[param.name];
    return spec;
  };
  // The numbers behind a figure, for those who cannot hover: the table that stands where a browser runs no scripts.
  const numbers = (figure) => {
    const table = figure.querySelector("noscript");
    if (!table?.textContent.trim() || figure.querySelector(".numbers")) return;
    const more = document.createElement("details");
    more.className = "numbers";
    more.innerHTML = "<summary>Numbers of this figure</summary>";
    more.addEventListener("toggle", () => { if (more.children.length < 2) more.insertAdjacentHTML("beforeend", table.textContent); });
    figure.append(more);
  };
  // Labels beside the bars may need more room than is known before they are drawn; `less`: pixels that were too few.
  const draw = async (figure, less = 0, tries = 4) => {
    views.get(figure)?.finalize();
    const spec = specOf(figure, less), field = spec.usermeta.colour;
    const drawn = await vegaEmbed(figure.querySelector(".view"), spec, {
      renderer: "svg", ast: false, actions: { export: true, source: false, compiled: false, editor: false },
      tooltip: { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" },
    });
    const view = drawn.view;
    views.set(figure, view);
    originals.set(figure, spec);
    const svg = figure.querySelector("svg.marks"), over = svg.width.baseVal.value - figure.clientWidth;
    if (over > 0 && tries) { await draw(figure, less + over + 4, tries - 1); return; }
    figure.dataset.drawn = "true";
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", spec.description);
    numbers(figure);
    for (const param of spec.params) if (/^(f_|pick_|show$|die$)/.test(param.name)) view.addSignalListener(param.name, (name, value) => share(name, value, view));
    if (spec.usermeta.sums) brush(view);
    if (figure.dataset.name === "dies") mapped(view, spec);
    if (timeline) follow(figure, view, spec);
    if (field) view.addEventListener("click", (event, item) => {
      const datum = item?.datum, name = `pick_${field}`;
      const value = datum?.[field] ?? (item?.mark?.role?.startsWith("legend") ? datum?.value : undefined) ?? null;
      const now = value === view.signal(name) ? null : value;
      view.signal(name, now).runAsync();
      share(name, now, view);
    });
  };
  // ---- the timeline and what follows it
  const timeline = document.querySelector('figure.plot[data-name="steps"]');
  const RUN = ["assumptions", "system", "model", "batch", "policy"];
  const originals = new Map();
  let span = null, steps;  // what is chosen: iterations from, to (until: the last of a cell), and a layer or null for all
  const runOf = (row) => RUN.map((name) => row[name]).join("|");
  const cells = () => {
    if (!steps) { const { datasets, usermeta } = JSON.parse(timeline.querySelector("script").textContent); steps = { rows: expanded(datasets.rows), sums: usermeta.sums }; }
    return steps;
  };
  const inSpan = (cell) => cell.iteration >= span.from && cell.iteration <= span.to && (span.layer ?? cell.layer) === cell.layer;
  const written = (value, units) => {
    const [worth, unit] = units.find(([each]) => value >= each) ?? units.at(-1);
    return `${Number((value / worth).toPrecision(3)).toLocaleString("en")} ${unit}`;
  };
  // Vega marks rows that it has seen by a symbol, which copies must not have.
  const put = (view, name, rows) => view.change(name, vega.changeset().remove(() => true).insert(rows.map((row) => Object.fromEntries(Object.entries(row)))));
  // The bars of the chosen layer-steps alone: sums of the cells of their run, one after the other from where a bar begins.
  const barsOf = (rows, { field, worth, units, mean }) => {
    const { rows: every, sums } = cells(), names = sums[field], of = new Map();
    for (const cell of every) if (inSpan(cell)) {
      const own = of.get(runOf(cell)) ?? of.set(runOf(cell), { total: names.map(() => 0), iterations: 0, layer: cell.layer }).get(runOf(cell));
      cell[`${field}_sums`].forEach((value, at) => { own.total[at] += value; });
      if (cell.layer === own.layer) own.iterations += cell.n;
    }
    let run, at = 0;
    return rows.filter((row) => of.has(runOf(row))).map((row) => {
      const own = of.get(runOf(row)), per = mean ? own.iterations : 1, whole = own.total.reduce((a, b) => a + b, 0) / per;
      if (runOf(row) !== run) { run = runOf(row); at = 0; }
      const begin = at, value = own.total[names.indexOf(row[field])] / per;
      at += value / worth;
      const share = `${Math.round(100 * value / (whole || 1))} %`;
      return row.begin == null
        ? { ...row, value: value / worth, end: row.end == null ? null : whole / worth, label: written(whole, units), tip: written(value, units) }
        : { ...row, begin, value: at, end: at, label: written(value, units), share };
    });
  };
  // Dies and links at the chosen iterations: means over the moments of the map, weighted by their time.
  const mapOf = ({ rows, links, moments }) => {
    const chosen = new Map();
    for (const each of moments) if (each.from <= span.until && each.to >= span.from) chosen.set(runOf(each), [...(chosen.get(runOf(each)) ?? []), each]);
    const over = (values, own) => {
      const known = own.filter(({ moment }) => values[moment - 1] != null), ns = known.reduce((sum, each) => sum + each.ns, 0);
      return ns ? known.reduce((sum, each) => sum + each.ns * values[each.moment - 1], 0) / ns : null;
    };
    const now = (row, change) => (row.at && chosen.has(runOf(row)) ? { ...row, ...change(row.at, chosen.get(runOf(row))) } : row);
    return {
      rows: rows.map((row) => now(row, (at, own) => Object.fromEntries(Object.entries(at).map(([name, values]) => [name, over(values, own)])))),
      links: (links ?? []).map((row) => now(row, (at, own) => ({ busy: over(at, own) }))),
      // the chosen layer-step in place of the slowest of its moment
      moments: moments.map((each) => {
        const cell = span.layer == null ? null : cells().rows.find((one) => inSpan(one) && RUN.every((name) => each[name] === undefined || one[name] === each[name]));
        if (!cell || !chosen.get(runOf(each))?.includes(each)) return each;
        const die = rows.find((row) => row.die === parseInt(cell.die) && runOf(row) === runOf(each));
        return { ...each, x_at: die?.x_at, y_at: die?.y_at, link_x: undefined, tip: `layer ${cell.layer}, ${cell.tip}, ${cell.cause}` + (cell.die ? `; die ${cell.die}` : "") };
      }),
      moment: span.layer == null && span.from !== span.to ? 0 : Math.min(...[...chosen.values()].flat().map((each) => each.moment)) || 0,
    };
  };
  const follow = (figure, view, spec) => {
    const { follows, filters, sums } = spec.usermeta, { rows, links, moments } = spec.datasets;
    if (follows) {
      const shown = span ? barsOf(rows, follows) : rows;
      const most = (of) => Math.max(0, ...of.filter((row) => filters.every((name) => [null, row[name]].includes(view.signal(`f_${name}`)))).map((row) => row.end ?? 0));
      put(view, "rows", shown).signal("part", span ? most(shown) / (most(rows) || 1) || 1 : 1).runAsync();
    } else if (moments) {
      const now = span ? mapOf(spec.datasets) : { rows, links, moments, moment: 0 };
      put(view, "rows", now.rows);
      if (links) put(view, "links", now.links);
      put(view, "moments", now.moments).signal("moment", Number.isFinite(now.moment) ? now.moment : 0).runAsync();
    } else if (sums) view.signal("span", span).runAsync();
    else return;
    figure.querySelector(".span")?.remove();
    if (!span) return;
    const told = document.createElement("p"), all = document.createElement("button");
    told.className = "note span";
    told.textContent = `${span.layer == null ? "All layers" : `Layer ${span.layer}`}, iteration${span.from === span.until ? "" : "s"} ${span.from === span.until ? span.from : `${span.from} to ${span.until}`} `;
    all.textContent = "show the whole run";
    all.addEventListener("click", () => choose(null));
    told.append(all);
    figure.querySelector("figcaption").after(told);
  };
  const choose = (next) => {
    span = next;
    for (const [figure, view] of views) follow(figure, view, originals.get(figure));
  };
  const brush = (view) => {
    const of = (item) => (item?.datum?.iteration == null ? null : item.datum);
    const ends = (a, b) => {
      const [first, last] = a.iteration <= b.iteration ? [a, b] : [b, a], one = a.iteration === b.iteration;
      return { from: first.iteration, to: last.iteration, until: last.iteration + last.n - 1, layer: one ? b.layer : null };
    };
    let from = null, to = null;
    view.addEventListener("pointerdown", (event, item) => { from = to = of(item); });
    view.addEventListener("pointermove", (event, item) => {
      if (from && of(item) && of(item) !== to) { to = of(item); view.signal("span", ends(from, to)).runAsync(); }
    });
    view.addEventListener("pointerup", (event, item) => {
      if (!from) { if (span) choose(null); return; }
      const next = ends(from, of(item) ?? to);
      if (from.policy != null && next.layer != null) share("f_policy", from.policy, null);
      from = null;
      choose(span && JSON.stringify(span) === JSON.stringify(next) ? null : next);
    });
  };
  const mapped = (view, spec) => {
    view.addEventListener("click", (event, item) => {
      const die = item?.datum?.die ?? null, now = die === view.signal("die") ? null : die;
      view.signal("die", now).runAsync();
      share("die", now, view);
    });
    if (spec.datasets.moments) view.addSignalListener("moment", (name, value) => {
      const each = spec.datasets.moments.find(({ moment }) => moment === value);
      if (span && (!value || (each.from <= span.until && each.to >= span.from))) { if (!value && span.from === span.to) choose(null); return; }
      if (each && timeline) choose({ from: each.from, to: each.to, until: each.to, layer: null });
    });
  };
  const figures = [...document.querySelectorAll("figure.plot:not([data-drawn])")];
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) { seen.unobserve(target); draw(target); }
  }, { rootMargin: "300px" });
  for (const figure of figures) seen.observe(figure);
  const again = () => { for (const figure of views.keys()) draw(figure); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = innerWidth, later;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; clearTimeout(later); later = setTimeout(again, 150); } });
  addEventListener("beforeprint", () => { for (const figure of figures) if (!views.has(figure)) draw(figure); });
})();
