// Lines over time and bars, as SVG. Labels are HTML, so that they keep their size.
import { clock, fill, h, svg } from "./dom.js";

const WIDTH = 600, HEIGHT = 120;

// gaps: times at which it is not known what there was, where lines are interrupted.
export function lineChart({ title, series, times, gaps = [], show, binary = false }) {
  const most = niceTop(Math.max(0, ...series.flatMap((one) => one.values).filter(Number.isFinite)), binary);
  const [from, to] = [times[0], times[times.length - 1]];
  const x = (at) => (to > from ? ((times[at] - from) / (to - from)) * WIDTH : WIDTH);
  const y = (value) => HEIGHT - (value / most) * (HEIGHT - 4);
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const part of [0.25, 0.5, 0.75]) {
    drawing.append(svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part, class: "grid" }));
  }
  series.forEach((one, number) => {
    for (const part of parts(one.values, gaps)) {
      const points = part.map((at) => `${x(at).toFixed(1)},${y(one.values[at]).toFixed(1)}`);
      if (one.area && points.length > 1) {
        drawing.append(svg("polygon", { class: `area s${number}`, points: `${x(part[0]).toFixed(1)},${HEIGHT} ${points.join(" ")} ${x(part[part.length - 1]).toFixed(1)},${HEIGHT}` }));
      }
      drawing.append(svg("polyline", { class: `line s${number}${one.dashed ? " dashed" : ""}`, points: points.join(" ") }));
    }
  });
  const hair = svg("line", { x1: 0, x2: 0, y1: 0, y2: HEIGHT, class: "hair" });
  drawing.append(hair);
  const legend = h("div", { class: "legend" });
  const tell = (at) => fill(legend, at === null ? null : h("span", { class: "when" }, clock(times[at] * 1000)), series.map((one, number) => {
    const value = one.values[at === null ? one.values.length - 1 : at];
    return h("span", null, h("i", { class: `dot s${number}` }), `${one.name} `, h("b", null, Number.isFinite(value) ? show(value) : "–"));
  }));
  tell(null);
  const plot = h("div", { class: "plot" }, drawing, h("span", { class: "top" }, show(most)));
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const when = from + ((event.clientX - box.left) / box.width) * (to - from);
    let at = 0;
    times.forEach((time, index) => { if (Math.abs(time - when) < Math.abs(times[at] - when)) at = index; });
    hair.setAttribute("x1", x(at));
    hair.setAttribute("x2", x(at));
    hair.classList.add("on");
    tell(at);
  });
  plot.addEventListener("pointerleave", () => { hair.classList.remove("on"); tell(null); });
  const name = `${title}: ${series.map((one) => `${one.name} ${show(one.values[one.values.length - 1] || 0)}`).join(", ")}`;
  return h("figure", { class: "chart", role: "img", "aria-label": name }, h("figcaption", null, title), legend, plot,
    h("div", { class: "axis" }, h("span", null, clock(from * 1000)), h("span", null, clock(to * 1000))));
}

// The places of values between gaps; one that is no number is passed over.
function parts(values, gaps) {
  const all = [[]];
  values.forEach((value, at) => {
    if (gaps[at]) all.push([]);
    else if (Number.isFinite(value)) all[all.length - 1].push(at);
  });
  return all.filter((part) => part.length);
}

function niceTop(value, binary) {
  if (!(value > 0)) return 1;
  if (binary) {
    const unit = 2 ** Math.floor(Math.log2(value));
    return [1, 1.25, 1.5, 1.75, 2].map((factor) => factor * unit).find((top) => top >= value);
  }
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * step).find((top) => top >= value);
}

// One bar for each range.
export function bars(rows) {
  const most = Math.max(1, ...rows.map((row) => row.count));
  return h("div", { class: "bars", role: "list" }, rows.map((row) => h("div", { class: "bar", role: "listitem" },
    h("span", { class: "range" }, row.label),
    svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { x: 0, y: 0, width: Math.max(0.4, (row.count / most) * 100), height: 10, class: "fill" })),
    h("span", { class: "number" }, row.text))));
}
