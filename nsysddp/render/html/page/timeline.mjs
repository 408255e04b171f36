/** The timeline: uPlot keeps its time axis and its zoom, the rest is drawn, pointed at and gone to here. */

import { Controls } from "./controls.mjs";
import { byId, make } from "./dom.mjs";
import { LEFT, Layout } from "./layout.mjs";
import { duration } from "./numbers.mjs";
import { after } from "./packed.mjs";
import { Painter } from "./painter.mjs";
import { lines, under } from "./pointer.mjs";
import { INCREMENTS, ROOM } from "./run.mjs";
import { onRepaint } from "./theme.mjs";

export class Timeline {
  constructor(host, run, looks) {
    this.host = host;
    this.run = run;
    this.looks = looks;
    this.compact = run.ranks.length > 4;
    this.drawn = new Set(run.packed.drawn);
    this.rank = run.packed.drawn.length ? run.packed.drawn[0] : 0;
    this.mark = null;
    this.pathOver = Boolean(run.path);
    this.details = byId("timeline-details");
    this.says = byId("timeline-says");
    this.tip = make("div", null, { class: "tip", hidden: "" });
    this.canvasHost = byId("timeline-plot");
    this.rebuild();
    this.controls = new Controls(this);
    new ResizeObserver(() => this.resize()).observe(this.canvasHost);
    onRepaint(() => { this.painter.mix(); this.redraw(); });
  }

  /* --- the plot -------------------------------------------------------------------------------------------- */

  rebuild() {
    const view = this.plot ? this.view : this.run.full;
    if (this.plot) this.plot.destroy();
    this.layout = new Layout(this.run, this.compact, this.run.ranks.filter(({ rank }) => this.drawn.has(rank)));
    this.painter = new Painter(this.run, this.looks, this.layout);
    this.canvasHost.replaceChildren();
    // uPlot takes its height a moment later; whoever scrolls to a rank before that would be scrolled on by as much.
    this.canvasHost.style.minHeight = `${this.layout.tall + 60}px`;
    this.plot = new uPlot(this.options(), [view, [0, 0]], this.canvasHost);
    const { over } = this.plot;
    over.append(this.tip);
    over.addEventListener("dblclick", (event) => { event.stopPropagation(); this.zoom(...this.run.full); }, true);
    over.addEventListener("click", () => this.pick());
    over.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    over.addEventListener("mousedown", (event) => this.drag(event), true);
    over.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    queueMicrotask(() => this.sayView());
  }

  /** Draw a rank too that was not; of many ranks only some are drawn at once. */
  draws(rank) {
    if (this.drawn.has(rank) || !this.run.ranks.some((one) => one.rank === rank)) return;
    this.drawn.add(rank);
    this.rebuild();
  }

  options() {
    const blank = { scale: "y", side: 3, size: LEFT, show: true, values: () => [], splits: () => [], grid: { show: false }, ticks: { show: false } };
    return {
      width: Math.max(360, this.canvasHost.clientWidth),
      height: this.layout.tall + 60,
      padding: [0, 12, 0, 0],
      legend: { show: false },
      scales: { x: { time: false, range: (_plot, low, high) => [low, high] }, y: { range: [0, 1] } },
      axes: [this.axis(2), { ...this.axis(0), scale: "x" }, blank],
      series: [{}, { show: true, points: { show: false }, paths: () => null }],
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      hooks: {
        drawClear: [() => this.draw()],
        setScale: [(plot, key) => key === "x" && this.plot === plot && this.sayView()],
        setSelect: [(plot) => this.selected(plot)],
        setCursor: [(plot) => this.hover(plot)],
      },
    };
  }

  axis(side) {
    return {
      side,
      size: 30,
      gap: 4,
      font: "11px system-ui, sans-serif",
      stroke: () => this.painter.paint.soft,
      grid: { show: false },
      ticks: { stroke: () => this.painter.paint.rule, width: 1, size: 5 },
      space: ROOM,
      incrs: INCREMENTS,
      splits: (_plot, _axis, low, high, increment) => this.run.ticks(low, high, increment),
      values: (_plot, splits, _axis, _space, increment) => splits.map((value) => this.run.clock(value, increment)),
    };
  }

  resize() {
    const width = Math.max(360, this.canvasHost.clientWidth);
    if (this.plot && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.plot.height });
  }

  redraw() {
    this.plot.redraw(false);
  }

  draw() {
    const { plot } = this;
    if (!plot) { queueMicrotask(() => this.redraw()); return; }
    const context = plot.ctx;
    const ratio = uPlot.pxRatio;
    const { min, max } = plot.scales.x;
    if (min === undefined || min === null) return;
    const left = plot.bbox.left / ratio;
    const top = plot.bbox.top / ratio;
    const width = plot.bbox.width / ratio;
    context.save();
    context.scale(ratio, ratio);
    context.fillStyle = this.painter.paint.paper;
    context.fillRect(0, 0, plot.width, plot.height);
    this.painter.draw({ context, left, top, width, min, max }, this);
    context.restore();
  }

  /* --- moving --------------------------------------------------------------------------------------------- */

  zoom(from, to) {
    const [low, high] = this.run.full;
    const most = (high - low) * 1.02;
    let span = Math.min(Math.max(to - from, 50), most);
    let start = Math.max(low - 0.01 * (high - low), from + (to - from - span) / 2);
    if (start + span > high + 0.01 * (high - low)) start = Math.max(low - 0.01 * (high - low), high + 0.01 * (high - low) - span);
    if (to - from >= high - low) [start, span] = [low, high - low];
    this.plot.setData([[start, start + span], [0, 0]], false);
    this.plot.setScale("x", { min: start, max: start + span });
    this.tip.hidden = true;
  }

  get view() {
    return [this.plot.scales.x.min, this.plot.scales.x.max];
  }

  scaleBy(factor, around) {
    const [min, max] = this.view;
    const middle = around ?? (min + max) / 2;
    this.zoom(middle - (middle - min) * factor, middle + (max - middle) * factor);
  }

  pan(share) {
    const [min, max] = this.view;
    const by = Math.max(this.run.full[0] - min, Math.min(this.run.full[1] - max, share * (max - min)));
    this.zoom(min + by, max + by);
  }

  wheel(event) {
    const across = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const box = this.plot.over.getBoundingClientRect();
      const [min, max] = this.view;
      const around = min + ((event.clientX - box.left) / box.width) * (max - min);
      this.scaleBy(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.004))), around);
    } else if (event.shiftKey || Math.abs(across) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan(across / this.plot.over.clientWidth);
    }
  }

  drag(event) {
    if (!event.shiftKey || event.button !== 0) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    const [min, max] = this.view;
    const move = (moved) => {
      const by = (-(moved.clientX - event.clientX) / this.plot.over.clientWidth) * (max - min);
      this.zoom(min + by, max + by);
    };
    const stop = () => {
      window.removeEventListener("mousemove", move);
      window.removeEventListener("mouseup", stop);
    };
    window.addEventListener("mousemove", move);
    window.addEventListener("mouseup", stop);
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (width > 3) {
      this.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
      this.dragged = true;
    }
    if (width) plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  sayView() {
    const [min, max] = this.view;
    if (min === undefined) return;
    byId("timeline-view").textContent = `${this.run.clock(min, 1000)} to ${this.run.clock(max, 1000)} ms, ${duration(max - min)} shown`;
  }

  /* --- what lies under the pointer -------------------------------------------------------------------------- */

  found() {
    const { left, top } = this.plot.cursor;
    if (left === undefined || left < 0) return null;
    const [min, max] = this.view;
    return under(this.run, this.layout, { top, time: this.plot.posToVal(left, "x"), pixel: (max - min) / this.plot.over.clientWidth });
  }

  hover(plot) {
    const found = this.found();
    if (!found) { this.tip.hidden = true; return; }
    const list = make("dl");
    for (const [term, text] of lines(this.run, this.looks, found)) list.append(make("dt", term), make("dd", text));
    this.tip.replaceChildren(list);
    this.tip.hidden = false;
    const { left, top } = plot.cursor;
    const room = plot.over.clientWidth;
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${left + wide + 24 > room ? Math.max(0, left - wide - 14) : left + 14}px`;
    this.tip.style.top = `${Math.min(top + 14, plot.over.clientHeight - this.tip.offsetHeight)}px`;
  }

  pick() {
    if (this.dragged) { this.dragged = false; return; }
    const found = this.found();
    if (!found) return;
    if (found.lane.rank) this.rank = found.lane.rank.rank;
    const places = [];
    if (found.boxes) {
      const from = found.boxes.start[found.box];
      places.push({ rank: this.rank, from, to: from + found.boxes.length[found.box], lane: found.lane.lane.name });
      const row = this.run.rowAt(this.rank, from);
      if (row && row.collective_id !== null) places.push(...this.run.counterparts(row));
    }
    this.mark = places.length ? { places } : null;
    this.detail(lines(this.run, this.looks, found));
    this.controls.sync();
    this.redraw();
  }

  detail(lines) {
    const list = make("dl");
    for (const [term, text] of lines) {
      const pair = make("div");
      pair.append(make("dt", term), make("dd", text));
      list.append(pair);
    }
    this.details.replaceChildren(list);
    this.says.textContent = lines.map(([term, text]) => `${term}: ${text}`).join("; ");
  }

  /* --- places: steps, collectives, pieces, findings ------------------------------------------------------------ */

  show({ rank, from, to, places, title, lane, air = 0.6 }) {
    if (rank !== null && rank !== undefined) this.rank = rank;
    this.draws(this.rank);
    this.mark = { places: places ?? [{ rank: this.rank, from, to, lane }] };
    const span = Math.max(to - from, 1);
    this.zoom(from - air * span, to + air * span);
    this.detail([["place", title], ["from", `${this.run.clock(from, 1)} ms`], ["duration", duration(to - from)]]);
    this.controls.sync();
    this.redraw();
    this.reveal();
  }

  /** Bring the rank into the window, below the page's bar. */
  reveal() {
    const header = this.layout.header(this.rank);
    const box = this.canvasHost.getBoundingClientRect();
    const at = box.top + (header ? header.begin : 0);
    const tall = header ? header.bottom - header.begin : 0;
    const most = window.innerHeight;
    const host = this.host.getBoundingClientRect();
    if (host.top < 0 || at + tall > most) {
      const first = window.scrollY + host.top - 56;
      const needed = window.scrollY + at + tall + 60 - most;
      window.scrollTo({ top: Math.max(first, needed) });
    }
  }

  showStep(step, rank) {
    const places = [];
    let [from, to] = [Infinity, -Infinity];
    for (const one of this.run.ranks) {
      if (rank !== undefined && rank !== null && one.rank !== rank) continue;
      for (let place = 0; place < one.windows.step.length; place += 1) {
        if (one.windows.step[place] !== step) continue;
        const [a, b] = [one.windows.start[place], one.windows.start[place] + one.windows.length[place]];
        places.push({ rank: one.rank, from: a, to: b });
        [from, to] = [Math.min(from, a), Math.max(to, b)];
      }
    }
    if (!places.length) return;
    this.step = step;
    this.show({ rank: rank ?? this.rank, from, to, places, title: this.run.packed.steps[step], air: 0.04 });
  }

  showCollective(row) {
    const one = typeof row === "number" ? this.run.tables.collective.row(row) : row;
    const origin = this.run.packed.origin_ns;
    const places = one.collective_id === null ? [] : this.run.counterparts(one);
    if (!places.length) places.push({ rank: one.rank, from: one.start_ns - origin, to: one.end_ns - origin, lane: "communication" });
    this.rank = one.rank;
    this.at = this.run.byStart.get(`${one.rank}:${one.start_ns - origin}`);
    this.show({
      rank: one.rank,
      from: Math.min(...places.map((place) => place.from)),
      to: Math.max(...places.map((place) => place.to)),
      places,
      title: `${one.kind.replaceAll("_", " ")} on rank ${one.rank}${one.step === null ? "" : `, ${one.step}`}`,
    });
    const start = one.start_ns - origin;
    for (const lane of this.layout.lanes) {
      if (lane.kind !== "lane" || lane.rank.rank !== one.rank || lane.lane.name !== "communication" || !lane.lane.boxes) continue;
      const boxes = this.run.boxes(lane.lane);
      const box = after(boxes.start, start) - 1;
      if (box >= 0 && boxes.start[box] === start) this.detail(lines(this.run, this.looks, { lane, boxes, box, time: start }));
    }
  }

  stepCollective(by) {
    const rows = this.run.ofRank.get(this.rank) ?? [];
    if (!rows.length) return;
    let place = rows.indexOf(this.at);
    if (place < 0) {
      const start = this.run.tables.collective.column("start_ns").values;
      const [min] = this.view;
      place = rows.findIndex((row) => start[row] - this.run.packed.origin_ns >= min);
      if (place < 0) place = rows.length - 1;
    } else place = Math.max(0, Math.min(rows.length - 1, place + by));
    this.showCollective(rows[place]);
  }

  stepStep(by) {
    const steps = this.run.stepNumbers;
    if (!steps.length) return;
    const place = steps.indexOf(this.step);
    this.showStep(steps[place < 0 ? 0 : Math.max(0, Math.min(steps.length - 1, place + by))]);
  }

  showRow(table, row) {
    if (table === "collective") this.showCollective(row);
    else if (table === "bucket") {
      const origin = this.run.packed.origin_ns;
      const index = this.run.byStart.get(`${row.rank}:${row.started_ns - origin}`);
      if (index !== undefined) this.showCollective(index);
      else this.show({ rank: row.rank, from: row.started_ns - origin, to: row.ended_ns - origin, lane: "communication", title: `bucket ${row.bucket}` });
    } else if (table === "overlap") {
      if (row.step_index === null) this.show({ rank: row.rank, from: this.run.full[0], to: this.run.full[1], title: `rank ${row.rank}`, air: 0 });
      else this.showStep(row.step_index, row.rank);
    }
  }

  showPiece(place) {
    const piece = this.run.path.pieces[place];
    const rank = piece.rank < 0 ? this.rank : piece.rank;
    this.show({ rank, from: piece.start, to: piece.end, lane: this.layout.laneOf(piece.rank, piece.kind)?.lane.name, title: `critical path: ${this.run.pieceTitle(piece)} ${piece.name}` });
  }
}
