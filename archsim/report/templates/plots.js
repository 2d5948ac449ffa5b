// Draws every figure of the class "plot" when it comes into view, in the colours and at the width of the page.
// Fields that are chosen in one figure, and what a click highlights, hold for all figures of the page.
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
    const svg = figure.querySelector("svg.marks"), over = svg.width.baseVal.value - figure.clientWidth;
    if (over > 0 && tries) { await draw(figure, less + over + 4, tries - 1); return; }
    figure.dataset.drawn = "true";
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", spec.description);
    numbers(figure);
    for (const param of spec.params) if (/^(f_|pick_|show|moment$)/.test(param.name)) view.addSignalListener(param.name, (name, value) => share(name, value, view));
    if (field) view.addEventListener("click", (event, item) => {
      const datum = item?.datum, name = `pick_${field}`;
      const value = datum?.[field] ?? (item?.mark?.role?.startsWith("legend") ? datum?.value : undefined) ?? null;
      const now = value === view.signal(name) ? null : value;
      view.signal(name, now).runAsync();
      share(name, now, view);
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
