// Clicks: the numbers of a die, link or bar (its title), and why a step takes its time.
const told = document.getElementById("told");
const tell = (lines) => {
  told.lastElementChild.replaceChildren(...lines.map((line) => Object.assign(document.createElement("p"), { textContent: line })));
  told.hidden = false;
};
told.querySelector("button").addEventListener("click", () => { told.hidden = true; });
addEventListener("keydown", (event) => { if (event.key === "Escape") told.hidden = true; });
const time = (ns) => (ns >= 1e6 ? `${(ns / 1e6).toPrecision(3)} ms` : `${(ns / 1e3).toPrecision(3)} µs`);
const bytes = (n) => (n >= 1e9 ? `${(n / 1e9).toPrecision(3)} GB` : n >= 1e6 ? `${(n / 1e6).toPrecision(3)} MB` : `${n.toLocaleString("en")} B`);
const why = (chart, [step, layer, ns, causes, link, die, expert, expertTokens]) => {
  const all = die[2];
  const lines = [
    `${chart.label}, iteration ${step}, layer ${layer}`,
    `cause: ${causes.map(([at, share]) => `${STEPS.causes[at]} ${share} %`).join(", ") || "not recorded"} of ${time(ns)}`,
    link ? `link: ${link[0]} → ${link[1]}, busy ${link[3]} % of the step, ${bytes(link[2])}` : "link: none was busy",
    `die: ${die[0]}, ${die[1].toLocaleString("en")} tokens, ${(die[1] * chart.dies / all).toPrecision(3)}× the mean`,
  ];
  if (expert !== null) lines.push(`expert: ${expert}, ${expertTokens.toLocaleString("en")} tokens, ${Math.round(100 * expertTokens / all)} % of all`);
  if (causes.length) lines.push(`help: at most −${causes[0][1]} %, if ${STEPS.causes[causes[0][0]]} took no time; simulated: archsim why . ${chart.chosen} --step ${step} --layer ${layer}`);
  return lines;
};
const stepAt = (figure, event) => {
  const chart = STEPS.charts[figure.dataset.steps], svg = figure.querySelector("svg");
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const column = Math.floor((at.x - chart.left) / chart.width), row = Math.floor((at.y - chart.top) / chart.height);
  const cell = column >= 0 && row >= 0 && column < chart.columns ? chart.cells[row * chart.columns + column] : null;
  return cell && why(chart, cell);
};
document.querySelector("main").addEventListener("click", (event) => {
  const figure = event.target.closest("figure[data-steps]");
  const lines = figure ? stepAt(figure, event) : event.target.closest("svg") && [event.target.querySelector(":scope > title")?.textContent ?? event.target.closest("g")?.querySelector(":scope > title")?.textContent];
  if (lines && lines[0]) tell(lines);
});
const unfold = () => {
  for (let at = document.getElementById(location.hash.slice(1)); at; at = at.parentElement) {
    if (at.tagName === "DETAILS") at.open = true;
    else if (at.firstElementChild?.tagName === "DETAILS") at.firstElementChild.open = true;
  }
};
addEventListener("hashchange", unfold);
unfold();
