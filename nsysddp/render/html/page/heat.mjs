/** A map of ranks by steps, or of senders by receivers: a cell each, coloured by one figure; a click goes to its rank. */

import { byId, make } from "./dom.mjs";
import { grouped } from "./numbers.mjs";
import { isDark, onRepaint } from "./theme.mjs";

const LABELS = 118, TOP = 22, LEAST_ROW = 2, MOST_ROW = 18, TALL = 900, LEAST_COLUMN = 4, MOST_COLUMN = 60, APART = 13;

/** Colours of paper, more and less: less is blue, more is orange, nothing is paper. */
const ends = () => (isDark()
  ? { none: [30, 34, 39], more: [255, 150, 60], less: [90, 170, 255] }
  : { none: [243, 244, 246], more: [200, 70, 0], less: [10, 92, 158] });

const mixed = (from, to, share) => `rgb(${from.map((value, place) => Math.round(value + (to[place] - value) * share)).join(",")})`;

/** What is unknown is neither much nor little. */
const hatched = (pen, ink) => {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 4;
  const brush = tile.getContext("2d");
  brush.strokeStyle = ink;
  brush.lineWidth = 0.8;
  brush.beginPath();
  for (const at of [-4, 0, 4]) { brush.moveTo(at, 4); brush.lineTo(at + 4, 0); }
  brush.stroke();
  return pen.createPattern(tile, "repeat");
};

const NO_MESSAGES = "-";

const told = (figure, value) => {
  if (value === null) return "unknown";
  if (value === NO_MESSAGES) return "nothing";
  return figure.unit === "ns" ? `${grouped(value / 1e3, 3)} ms` : `${grouped(value, 1)} ${figure.unit === "mb" ? "MB" : "GB/s"}`;
};

export class HeatMap {
  /** ``name`` begins the ids of its elements; ``go`` is called with the place of a cell, ``{ step, rank }``. */
  constructor(name, data, go) {
    Object.assign(this, { host: byId(`${name}-scroll`), data, go, at: { row: 0, column: 0 }, isChosen: false });
    this.canvas = byId(`${name}-map`);
    this.says = byId(`${name}-says`);
    this.figure = byId(`${name}-figure`);
    this.order = byId(`${name}-order`);
    this.scale = byId(`${name}-scale`);
    data.figures.forEach((one, place) => this.figure.append(make("option", one.name, { value: place })));
    for (const order of Object.keys(data.orders)) this.order.append(make("option", `by ${order}`, { value: order }));
    this.order.hidden = Object.keys(data.orders).length < 2;
    for (const one of [this.figure, this.order]) one.addEventListener("change", () => this.paint());
    this.canvas.addEventListener("mousemove", (event) => this.point(event, false));
    this.canvas.addEventListener("click", (event) => this.point(event, true));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    onRepaint(() => this.paint());
    new ResizeObserver(() => this.paint()).observe(this.host);
    this.paint();
  }

  get shown() {
    return this.data.figures[this.figure.value || 0];
  }

  get rows() {
    return this.data.orders[this.order.value];
  }

  /** What stands for full colour: few cells are beyond it. */
  reach() {
    const known = this.shown.values.flat().filter((value) => typeof value === "number").map(Math.abs).sort((a, b) => a - b);
    return Math.max(known[Math.floor(0.995 * (known.length - 1))] || 1, this.shown.least);
  }

  paint() {
    const { data, canvas } = this, ranks = data.ranks.length, steps = data.steps.length;
    const wide = Math.max(240, this.host.clientWidth - LABELS - 4);
    this.row = Math.max(LEAST_ROW, Math.min(MOST_ROW, Math.floor(TALL / ranks)));
    this.column = Math.max(LEAST_COLUMN, Math.min(MOST_COLUMN, Math.floor(wide / steps)));
    const width = LABELS + this.column * steps + 2, height = TOP + this.row * ranks + 2, sharp = window.devicePixelRatio || 1;
    canvas.width = width * sharp;
    canvas.height = height * sharp;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    pen.scale(sharp, sharp);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const colours = ends(), most = this.reach(), figure = this.shown;
    const hatch = hatched(pen, style.getPropertyValue("--soft"));
    const edge = this.row > 6 && this.column > 6 ? 1 : 0;
    this.rows.forEach((row, place) => {
      figure.values[row].forEach((value, column) => {
        const at = [LABELS + column * this.column, TOP + place * this.row, this.column - edge, this.row - edge];
        if (value === NO_MESSAGES) return;
        if (value === null) {
          pen.fillStyle = hatch;
          pen.fillRect(...at);
          return;
        }
        const share = Math.min(1, Math.abs(value) / most);
        pen.fillStyle = mixed(colours.none, value > 0 === (figure.unit === "ns") ? colours.more : colours.less, share);
        pen.fillRect(...at);
      });
    });
    this.label(pen, style.getPropertyValue("--soft"));
    if (this.isChosen) this.frame(pen, style.getPropertyValue("--mark"));
    this.scale.textContent = this.words(most);
  }

  words(most) {
    const { unit, signed, values } = this.shown, reach = told(this.shown, most);
    const hatched = values.flat().includes(null) ? "; hatched: unknown" : "";
    if (unit === "ns") return `full orange: ${reach} and more${signed ? "; blue: less than the peers" : ""}${hatched}`;
    return `full blue: ${reach} and more; paler is ${unit === "mb" ? "less" : "slower"}${hatched}`;
  }

  label(pen, ink) {
    const { data } = this;
    pen.fillStyle = ink;
    pen.textAlign = "right";
    const byHost = this.order.value === "host";
    let below = -Infinity;
    this.rows.forEach((row, place) => {
      const y = TOP + (place + 0.5) * this.row;
      const isFirst = place === 0 || data.hosts[row] !== data.hosts[this.rows[place - 1]];
      if (y - below < APART || (byHost && this.row < APART && !isFirst)) return;
      below = y;
      pen.fillText(byHost && isFirst ? `${data.hosts[row]}  ${data.rows[row]}` : data.rows[row], LABELS - 6, y);
    });
    pen.textAlign = "left";
    let right = -Infinity;
    data.steps.forEach((name, column) => {
      const x = LABELS + column * this.column;
      if (x < right) return;
      pen.fillText(name, x, TOP / 2);
      right = x + pen.measureText(name).width + 10;
    });
  }

  frame(pen, ink) {
    const place = this.rows.indexOf(this.at.row);
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    pen.strokeRect(LABELS + this.at.column * this.column - 1, TOP + place * this.row - 1, this.column + 1, this.row + 1);
  }

  point(event, isClick) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - LABELS) / this.column);
    const place = Math.floor((event.clientY - box.top - TOP) / this.row);
    if (column < 0 || place < 0 || column >= this.data.steps.length || place >= this.rows.length) return;
    this.choose(this.rows[place], column);
    if (isClick) this.follow();
  }

  press(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "Enter") this.follow();
    else if (moves[event.key]) {
      const [down, right] = moves[event.key], last = this.rows.length - 1;
      const place = Math.max(0, Math.min(last, this.rows.indexOf(this.at.row) + down));
      this.choose(this.rows[place], Math.max(0, Math.min(this.data.steps.length - 1, this.at.column + right)));
    } else return;
    event.preventDefault();
  }

  choose(row, column) {
    this.at = { row, column };
    this.isChosen = true;
    const { data } = this, values = data.figures.map((one) => `${one.name} ${told(one, one.values[row][column])}`);
    const who = data.rows[row] === data.hosts[row] ? data.rows[row] : `${data.rows[row]} (${data.hosts[row]})`;
    this.says.textContent = `${who}, ${data.to ?? ""}${data.steps[column]}: ${values.join(", ")}`;
    this.paint();
  }

  follow() {
    this.go({ step: this.data.indexes[this.at.column], rank: this.data.ranks[this.at.row] });
  }
}
