"use strict";
/* The page's own program: tables that sort and filter, and the timeline (drawn on uPlot's canvas and axes).
   Everything from the trace is put into the page as text, never as markup. */
(() => {
  const byId = (id) => document.getElementById(id);
  const read = (id) => JSON.parse(byId(id).textContent);
  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  /* --- numbers for people ------------------------------------------------------------------------------- */

  const grouped = (value, digits) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const duration = (ns) => {
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
      if (Math.abs(ns) >= size) {
        const value = ns / size;
        return `${Number(value.toPrecision(Math.abs(value) >= 100 ? Math.ceil(Math.log10(Math.abs(value) + 1)) : 3)).toLocaleString("en-US")} ${unit}`;
      }
    }
    return `${Math.round(ns)} ns`;
  };
  const size = (bytes) => {
    for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (bytes >= scale) return `${Number((bytes / scale).toPrecision(4))} ${unit}`;
    }
    return `${bytes} B`;
  };
  const shown = {
    ns: (value) => grouped(value / 1e6, 3),
    bytes: size,
    float: (value) => Number(value.toPrecision(4)).toLocaleString("en-US"),
    int: (value) => String(value),
    flag: (value) => (value ? "yes" : "no"),
    text: (value) => value,
  };

  /* --- light and dark ----------------------------------------------------------------------------------- */

  const root = document.documentElement;
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const repaints = [];
  const repaint = () => repaints.forEach((one) => one());
  const toggle = byId("theme");
  const tellTheme = () => {
    toggle.setAttribute("aria-pressed", String(isDark()));
    repaint();
  };
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tellTheme();
  });
  prefersDark.addEventListener("change", tellTheme);

  /* --- tables -------------------------------------------------------------------------------------------- */

  const PAGE = 25;
  const tables = {};

  class DataTable {
    constructor(host, data) {
      this.host = host;
      this.data = data;
      this.columns = data.columns.map((column) => {
        const values = column.words ? column.data.map((code) => (code === null ? null : column.words[code])) : column.data;
        return { ...column, values };
      });
      this.sorted = null;
      this.ascending = true;
      this.page = 0;
      this.text = "";
      this.facets = {};
      this.marked = -1;
      this.build();
      this.apply();
    }

    column(name) {
      return this.columns.find((column) => column.name === name);
    }

    row(index) {
      return Object.fromEntries(this.columns.map((column) => [column.name, column.values[index]]));
    }

    build() {
      const { host } = this;
      const tools = make("div", null, { class: "tools" });
      const search = make("input", null, { type: "search", placeholder: "filter by text", "aria-label": `Filter ${this.data.title} by text` });
      search.addEventListener("input", () => { this.text = search.value.toLowerCase(); this.page = 0; this.apply(); });
      this.search = search;
      tools.append(search);
      this.selects = {};
      for (const column of this.columns.filter((one) => one.facet)) {
        const values = [...new Set(column.values)].filter((value) => value !== null);
        if (values.length < 2 || values.length > 2000) continue;
        if (column.kind === "int") values.sort((a, b) => a - b);
        const select = make("select", null, { "aria-label": `Filter ${this.data.title} by ${column.label}` });
        select.append(make("option", `${column.label}: all`, { value: "" }));
        for (const value of values) select.append(make("option", `${column.label} ${value}`, { value: String(value) }));
        select.addEventListener("change", () => { this.facets[column.name] = select.value; this.page = 0; this.apply(); });
        this.selects[column.name] = select;
        tools.append(select);
      }
      const clear = make("button", "clear", { type: "button" });
      clear.addEventListener("click", () => this.filter({}));
      tools.append(clear);
      this.status = make("span", "", { class: "status", role: "status" });
      tools.append(this.status);

      const scroller = make("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": this.data.title });
      const table = make("table", null, { class: "data" });
      table.append(make("caption", this.data.caption));
      const head = make("tr");
      if (this.data.jump) head.append(make("th", "place", { scope: "col", class: "jump" }));
      this.shown = this.columns.filter((column) => !column.held);
      this.headers = this.shown.map((column) => {
        const cell = make("th", null, { scope: "col", class: column.kind === "text" ? "" : "number" });
        const button = make("button", column.label, { type: "button", title: column.meaning });
        button.append(make("span", "", { class: "arrow", "aria-hidden": "true" }));
        button.addEventListener("click", () => this.sort(column.name));
        cell.append(button);
        head.append(cell);
        return cell;
      });
      const heading = make("thead");
      heading.append(head);
      this.body = make("tbody");
      table.append(heading, this.body);
      scroller.append(table);

      this.pager = make("div", null, { class: "pager" });
      const button = (label, name, act) => {
        const one = make("button", label, { type: "button", "aria-label": name });
        one.addEventListener("click", act);
        return one;
      };
      this.first = button("«", "First page", () => this.turn(-Infinity));
      this.previous = button("‹", "Previous page", () => this.turn(-1));
      this.next = button("›", "Next page", () => this.turn(1));
      this.last = button("»", "Last page", () => this.turn(Infinity));
      this.where = make("span");
      this.pager.append(this.first, this.previous, this.where, this.next, this.last);
      host.replaceChildren(tools, scroller, this.pager);
    }

    sort(name) {
      this.ascending = this.sorted === name ? !this.ascending : this.column(name).kind === "text";
      this.sorted = name;
      this.page = 0;
      this.apply();
    }

    turn(by) {
      this.page = Math.max(0, Math.min(this.pages - 1, by === -Infinity ? 0 : by === Infinity ? this.pages - 1 : this.page + by));
      this.draw();
    }

    filter(facets) {
      this.search.value = this.text = "";
      this.facets = {};
      this.hidden = {};
      for (const [name, value] of Object.entries(facets)) {
        if (value === null || value === undefined || !this.column(name)) continue;
        (this.selects[name] ? this.facets : this.hidden)[name] = String(value);
      }
      for (const [name, select] of Object.entries(this.selects)) select.value = this.facets[name] ?? "";
      this.page = 0;
      this.marked = -1;
      this.apply();
    }

    apply() {
      const wanted = Object.entries({ ...this.facets, ...this.hidden }).filter(([, value]) => value !== "");
      const checks = wanted.map(([name, value]) => [this.column(name).values, value]);
      const texts = this.columns.filter((column) => column.kind === "text");
      const rows = [];
      for (let index = 0; index < this.data.rows; index += 1) {
        if (!checks.every(([values, value]) => String(values[index]) === value)) continue;
        if (this.text && !texts.some(({ values }) => (values[index] ?? "").toLowerCase().includes(this.text))) continue;
        rows.push(index);
      }
      if (this.sorted) {
        const { values, kind } = this.column(this.sorted);
        const sign = this.ascending ? 1 : -1;
        const compare = kind === "text" ? (a, b) => (a < b ? -1 : a > b ? 1 : 0) : (a, b) => a - b;
        rows.sort((a, b) => {
          const [x, y] = [values[a], values[b]];
          if (x === null || y === null) return (x === null) - (y === null) || a - b;
          return sign * compare(x, y) || a - b;
        });
      }
      this.order = rows;
      this.pages = Math.max(1, Math.ceil(rows.length / PAGE));
      this.headers.forEach((cell, place) => {
        const active = this.shown[place].name === this.sorted;
        if (active) cell.setAttribute("aria-sort", this.ascending ? "ascending" : "descending");
        else cell.removeAttribute("aria-sort");
        cell.querySelector(".arrow").textContent = active ? (this.ascending ? " ▲" : " ▼") : "";
      });
      this.draw();
    }

    mark(index) {
      this.marked = index;
      const place = this.order.indexOf(index);
      if (place >= 0) this.page = Math.floor(place / PAGE);
      this.draw();
    }

    draw() {
      const first = this.page * PAGE;
      const rows = this.order.slice(first, first + PAGE).map((index) => {
        const line = make("tr", null, index === this.marked ? { class: "marked" } : {});
        if (this.data.jump) {
          const cell = make("td", null, { class: "jump" });
          const row = this.row(index);
          const button = make("button", "show", { type: "button" });
          button.addEventListener("click", () => timeline && timeline.showRow(this.data.name, row));
          button.setAttribute("aria-label", `Show row in the timeline, rank ${row.rank}`);
          cell.append(button);
          line.append(cell);
        }
        for (const column of this.shown) {
          const value = column.values[index];
          const text = value === null ? "" : shown[column.kind](value);
          const cell = make("td", column.wide ? null : text, { class: column.wide ? "name" : column.kind === "text" ? "" : "number" });
          if (column.wide) cell.append(make("div", text, { title: text }));
          line.append(cell);
        }
        return line;
      });
      this.body.replaceChildren(...rows);
      const count = this.order.length;
      this.status.textContent = count === this.data.rows ? `${grouped(count, 0)} rows` : `${grouped(count, 0)} of ${grouped(this.data.rows, 0)} rows`;
      this.where.textContent = `page ${grouped(this.page + 1, 0)} of ${grouped(this.pages, 0)}`;
      this.pager.hidden = this.pages < 2;
      this.first.disabled = this.previous.disabled = this.page === 0;
      this.next.disabled = this.last.disabled = this.page >= this.pages - 1;
    }
  }

  for (const host of document.querySelectorAll("[data-table]")) {
    tables[host.dataset.table] = new DataTable(host, read(`table-${host.dataset.table}`));
  }

  /* --- the timeline: what was packed ---------------------------------------------------------------------- */

  const unpack = (text) => {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let place = 0; place < raw.length; place += 1) bytes[place] = raw.charCodeAt(place);
    return bytes;
  };

  class Columns {
    constructor(text) {
      this.bytes = unpack(text.trim());
    }

    numbers([offset, count]) {
      const { bytes } = this;
      const out = new Float64Array(count);
      let at = offset;
      for (let place = 0; place < count; place += 1) {
        let byte = bytes[at++];
        let value = byte & 127;
        let scale = 128;
        while (byte > 127) {
          byte = bytes[at++];
          value += (byte & 127) * scale;
          scale *= 128;
        }
        out[place] = value;
      }
      return out;
    }

    ascending(place) {
      const out = this.numbers(place);
      for (let index = 1; index < out.length; index += 1) out[index] += out[index - 1];
      return out;
    }
  }

  /** First place in an ascending array whose value is greater than ``value``. */
  const after = (array, value) => {
    let [low, high] = [0, array.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (array[middle] > value) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  /** A set of instants: pieces, and how much time is covered before each. */
  class Pieces {
    constructor(columns, packed) {
      const gap = columns.numbers(packed.gap);
      const length = columns.numbers(packed.length);
      const open = packed.open ? columns.numbers(packed.open) : null;
      const count = gap.length;
      this.exact = !open;
      this.start = new Float64Array(count);
      this.end = new Float64Array(count);
      this.before = new Float64Array(count + 1);
      let at = 0;
      for (let place = 0; place < count; place += 1) {
        this.start[place] = at + gap[place];
        at = this.end[place] = this.start[place] + length[place];
        this.before[place + 1] = this.before[place] + length[place] - (open ? open[place] : 0);
      }
    }

    coveredBefore(time, place) {
      if (place < 0) return 0;
      const { start, end, before } = this;
      if (time >= end[place]) return before[place + 1];
      const share = (before[place + 1] - before[place]) / (end[place] - start[place]);
      return before[place] + share * (time - start[place]);
    }

    covered(from, to) {
      return this.coveredBefore(to, after(this.start, to) - 1) - this.coveredBefore(from, after(this.start, from) - 1);
    }

    /** The share of each of ``count`` equal columns that is covered; null if nothing is. */
    shares(from, to, count) {
      const { start } = this;
      let place = after(start, from) - 1;
      if (place + 1 >= start.length && (place < 0 || this.end[place] <= from)) return null;
      const out = new Float32Array(count);
      const width = (to - from) / count;
      let last = this.coveredBefore(from, place);
      for (let column = 0; column < count; column += 1) {
        const edge = from + (column + 1) * width;
        while (place + 1 < start.length && start[place + 1] <= edge) place += 1;
        const now = this.coveredBefore(edge, place);
        out[column] = (now - last) / width;
        last = now;
      }
      return out;
    }
  }

  /** The events of a lane, in order of start. */
  class Boxes {
    constructor(columns, packed) {
      this.start = columns.ascending(packed.start);
      this.length = columns.numbers(packed.length);
      this.name = columns.numbers(packed.name);
      this.subrow = packed.stream ? columns.numbers(packed.stream) : null;
      this.wait = packed.wait ? columns.numbers(packed.wait) : null;
      this.reach = new Float64Array(this.start.length);
      let reach = 0;
      for (let place = 0; place < this.start.length; place += 1) {
        reach = Math.max(reach, this.start[place] + this.length[place]);
        this.reach[place] = reach;
      }
    }

    /** Half-open range of the events that can touch ``[from, to]``. */
    range(from, to) {
      return [after(this.reach, from - 1e-9), after(this.start, to)];
    }
  }

  const LEFT = 132;
  const HEIGHTS = { compute: 20, spin: 13, communication: 20, exposed: 12, memory: 11, graph: 17, idle: 11, host: 13, path: 20 };
  const BRIEF = new Set(["compute", "communication", "exposed", "graph"]);
  const MOST_SUBROWS = 4;
  const MOST_LABELLED = 16;
  const MOST_BOXES = 20000;

  class Timeline {
    constructor(host, packed, looks) {
      this.host = host;
      this.packed = packed;
      this.looks = looks;
      this.columns = new Columns(byId("timeline-columns").textContent);
      this.full = [...packed.view];
      this.compact = packed.ranks.length > 4;
      this.rank = packed.ranks.length ? packed.ranks[0].rank : 0;
      this.mark = null;
      this.pathOver = Boolean(packed.path);
      this.ranks = packed.ranks.map((rank) => ({
        ...rank,
        windows: {
          step: this.columns.numbers(rank.windows.step),
          start: this.columns.ascending(rank.windows.start),
          length: this.columns.numbers(rank.windows.length),
          warm: this.columns.numbers(rank.windows.warm),
        },
      }));
      this.details = byId("timeline-details");
      this.says = byId("timeline-says");
      this.tip = make("div", null, { class: "tip", hidden: "" });
      this.canvasHost = byId("timeline-plot");
      this.collectives();
      this.path = packed.path && this.unpackPath(packed.path);
      this.rebuild();
      this.controls();
      new ResizeObserver(() => this.resize()).observe(this.canvasHost);
      repaints.push(() => { this.paints(); this.plot.redraw(false); });
    }

    /** The pieces of all rows of the path, in order of start. */
    unpackPath(packed) {
      const { columns } = this;
      const pieces = [];
      packed.rows.forEach((row, subrow) => {
        const gap = columns.numbers(row.gap);
        const length = columns.numbers(row.length);
        const what = columns.numbers(row.what);
        const name = columns.numbers(row.name);
        let at = 0;
        for (let place = 0; place < gap.length; place += 1) {
          const start = at + gap[place];
          at = start + length[place];
          pieces.push({ start, end: at, length: length[place], kind: packed.kinds[what[place] % packed.kinds.length], rank: Math.floor(what[place] / packed.kinds.length) - 1, name: packed.names[name[place]], subrow });
        }
      });
      pieces.sort((a, b) => a.start - b.start || a.subrow - b.subrow);
      const reach = new Float64Array(pieces.length);
      pieces.forEach((piece, place) => { reach[place] = Math.max(place ? reach[place - 1] : 0, piece.end); });
      return { pieces, reach, start: Float64Array.from(pieces, (piece) => piece.start), rows: Math.min(packed.rows.length, 3), partial: packed.left_out > 0 };
    }

    /** Pieces of the path that touch ``[from, to]``. */
    pathBetween(from, to) {
      const { pieces, reach, start } = this.path;
      return pieces.slice(after(reach, from), after(start, to)).filter((piece) => piece.end > from);
    }

    /** Rows of the collective table by rank and start, so that a box finds its numbers. */
    collectives() {
      this.byStart = new Map();
      this.ofCollective = new Map();
      this.ofRank = new Map();
      const table = tables.collective;
      if (!table) return;
      const [rank, start, id] = ["rank", "start_ns", "collective_id"].map((name) => table.column(name).values);
      for (let row = 0; row < table.data.rows; row += 1) {
        this.byStart.set(`${rank[row]}:${start[row] - this.packed.origin_ns}`, row);
        if (id[row] !== null) {
          if (!this.ofCollective.has(id[row])) this.ofCollective.set(id[row], []);
          this.ofCollective.get(id[row]).push(row);
        }
        if (!this.ofRank.has(rank[row])) this.ofRank.set(rank[row], []);
        this.ofRank.get(rank[row]).push(row);
      }
      this.bucketOf = new Map();
      if (tables.bucket) {
        const [owner, begin, number] = ["rank", "started_ns", "bucket"].map((name) => tables.bucket.column(name).values);
        for (let row = 0; row < tables.bucket.data.rows; row += 1) this.bucketOf.set(`${owner[row]}:${begin[row]}`, number[row]);
      }
      for (const rows of this.ofRank.values()) rows.sort((a, b) => start[a] - start[b] || a - b);
    }

    /* --- layout ------------------------------------------------------------------------------------------- */

    layout() {
      const lanes = [];
      let top = 4;
      const add = (lane, height) => {
        lanes.push({ ...lane, top, height });
        top += height + (this.dense && lane.kind !== "path" ? 1 : 3);
      };
      const headers = [];
      // Very many ranks: a rank's name takes the place of its lanes' names, and only the first tells the steps.
      this.dense = this.compact && this.ranks.length > MOST_LABELLED;
      if (this.path) {
        const height = HEIGHTS.path + 13 * (this.path.rows - 1);
        add({ kind: "path", label: "critical path" }, height);
        top += 8;
      }
      this.ranks.forEach((rank, place) => {
        const named = !this.dense || !place;
        headers.push({ rank, top, named });
        const begin = top;
        if (named) top += 16;
        if (!this.compact && rank.phases.length) add({ kind: "host", label: "host", rank, place }, HEIGHTS.host);
        for (const lane of rank.lanes) {
          if (this.compact && !BRIEF.has(lane.name)) continue;
          const streams = Math.min(lane.streams ? lane.streams.length : 1, MOST_SUBROWS);
          const base = this.compact ? Math.round(HEIGHTS[lane.name] * (this.dense ? 0.6 : 0.75)) : HEIGHTS[lane.name];
          add({ kind: "lane", label: lane.label, lane, rank, place }, base + (streams - 1) * Math.round(base * 0.6));
        }
        headers[headers.length - 1].bottom = top;
        headers[headers.length - 1].begin = begin;
        top += this.dense ? 3 : this.compact ? 5 : 10;
      });
      this.lanes = lanes;
      this.headers = headers;
      this.tall = top;
      return top;
    }

    sets(lane) {
      lane.sets ??= lane.parts.map((part) => ({ look: part.look, set: new Pieces(this.columns, part.set) }));
      return lane.sets;
    }

    boxes(lane) {
      if (!lane.boxes) return null;
      lane.unpacked ??= new Boxes(this.columns, lane.boxes);
      return lane.unpacked;
    }

    paints() {
      const style = getComputedStyle(document.documentElement);
      const dark = this.printing ? false : isDark();
      const get = (name) => style.getPropertyValue(name).trim();
      this.paint = this.printing
        ? { ink: "#1a1c1f", soft: "#5f6670", rule: "#c9cdd2", track: "#f3f4f6", paper: "#ffffff", mark: "#b00060" }
        : { ink: get("--ink"), soft: get("--soft"), rule: get("--rule"), track: get("--track"), paper: get("--paper"), mark: get("--mark") };
      this.fill = (key) => (this.looks[key] ?? this.looks.idle)[dark ? "dark" : "fill"];
      this.inkOn = (key) => (this.looks[key] ?? this.looks.idle)[dark ? "dark_ink" : "ink"];
      this.dark = dark;
    }

    rebuild() {
      const view = this.plot ? [this.plot.scales.x.min, this.plot.scales.x.max] : this.full;
      if (this.plot) this.plot.destroy();
      this.paints();
      const height = this.layout();
      const axis = (side) => ({
        side,
        size: 30,
        gap: 4,
        font: "11px system-ui, sans-serif",
        stroke: () => this.paint.soft,
        grid: { show: false },
        ticks: { stroke: () => this.paint.rule, width: 1, size: 5 },
        space: 84,
        incrs: this.increments(),
        // Round on the run's own clock, not from where the page's times begin.
        splits: (_plot, _axis, low, high, increment) => {
          const made = [];
          const { origin_ns: origin } = this.packed;
          for (let at = Math.ceil((low + origin) / increment) * increment; at <= high + origin; at += increment) made.push(at - origin);
          return made;
        },
        values: (_plot, splits, _axis, _space, increment) => splits.map((value) => this.clock(value, increment)),
      });
      const options = {
        width: Math.max(360, this.canvasHost.clientWidth),
        height: height + 60,
        padding: [0, 12, 0, 0],
        legend: { show: false },
        scales: { x: { time: false, range: (_plot, low, high) => [low, high] }, y: { range: [0, 1] } },
        axes: [axis(2), axis(0), { scale: "y", side: 3, size: LEFT, show: true, values: () => [], splits: () => [], grid: { show: false }, ticks: { show: false } }],
        series: [{}, { show: true, points: { show: false }, paths: () => null }],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
        hooks: {
          drawClear: [() => this.draw()],
          setScale: [(plot, key) => key === "x" && this.plot === plot && this.tell()],
          setSelect: [(plot) => this.selected(plot)],
          setCursor: [(plot) => this.hover(plot)],
        },
      };
      options.axes[1].scale = "x";
      this.canvasHost.replaceChildren();
      this.plot = new uPlot(options, [view, [0, 0]], this.canvasHost);
      this.plot.over.append(this.tip);
      this.plot.over.addEventListener("dblclick", (event) => { event.stopPropagation(); this.zoom(...this.full); }, true);
      this.plot.over.addEventListener("click", () => this.pick());
      this.plot.over.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.plot.over.addEventListener("mousedown", (event) => this.drag(event), true);
      this.plot.over.addEventListener("mouseleave", () => { this.tip.hidden = true; });
      queueMicrotask(() => this.tell());
    }

    increments() {
      const made = [];
      for (let scale = 1; scale <= 1e13; scale *= 10) made.push(scale, 2 * scale, 5 * scale);
      return made;
    }

    clock(value, increment) {
      const digits = Math.max(0, 6 - Math.floor(Math.log10(Math.max(increment, 1)) + 1e-9));
      return grouped((value + this.packed.origin_ns) / 1e6, Math.min(digits, 6));
    }

    resize() {
      const width = Math.max(360, this.canvasHost.clientWidth);
      if (this.plot && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.plot.height });
    }

    /* --- drawing ------------------------------------------------------------------------------------------ */

    draw() {
      const { plot } = this;
      if (!plot) { queueMicrotask(() => this.plot.redraw(false)); return; }
      const context = plot.ctx;
      const ratio = uPlot.pxRatio;
      const { min, max } = plot.scales.x;
      if (min === undefined || min === null) return;
      const left = plot.bbox.left / ratio;
      const top = plot.bbox.top / ratio;
      const width = plot.bbox.width / ratio;
      context.save();
      context.scale(ratio, ratio);
      context.fillStyle = this.paint.paper;
      context.fillRect(0, 0, plot.width, plot.height);
      this.drawOn({ context, left, top, width, min, max });
      context.restore();
    }

    /** Draw all lanes: ``left`` and ``top`` say where they begin, ``width`` how much room the time has. */
    drawOn({ context, left, top, width, min, max }) {
      const view = { context, left, top, width, min, max, scale: width / (max - min) };
      view.x = (time) => left + (time - min) * view.scale;
      this.drawLabels(view);
      context.beginPath();
      context.rect(left, top, width, this.tall);
      context.clip();
      for (const lane of this.lanes) {
        context.fillStyle = this.paint.track;
        context.fillRect(left, top + lane.top, width, lane.height);
        if (lane.kind === "lane") this.drawLane(view, lane);
        else if (lane.kind === "host") this.drawHost(view, lane);
        else this.drawPath(view, lane);
      }
      this.drawSteps(view);
      if (this.path && this.pathOver) this.drawPathOver(view);
      this.drawMark(view);
    }

    drawLabels({ context, top }) {
      context.textBaseline = "middle";
      context.textAlign = "left";
      for (const header of this.headers) {
        const { rank } = header;
        const middle = top + (this.dense ? header.bottom - 18 : header.top + 8);
        context.fillStyle = rank.rank === this.rank ? this.paint.mark : this.paint.ink;
        context.font = "600 12px system-ui, sans-serif";
        context.fillText(`rank ${rank.rank}`, 2, middle);
        const wide = context.measureText(`rank ${rank.rank}`).width;
        context.fillStyle = this.paint.soft;
        context.font = "10px system-ui, sans-serif";
        context.fillText(this.fitted(context, rank.place[0] ?? "", LEFT - wide - 16), wide + 8, middle);
      }
      context.textAlign = "right";
      for (const lane of this.lanes) {
        if (this.dense && lane.kind === "lane") continue;
        context.fillStyle = lane.kind === "path" ? this.paint.ink : this.paint.soft;
        context.font = `${lane.kind === "path" ? "600 11px" : "10.5px"} system-ui, sans-serif`;
        context.fillText(lane.label, LEFT - 8, top + lane.top + lane.height / 2);
      }
    }

    fitted(context, text, room) {
      if (room < 12) return "";
      if (text.length < 200 && context.measureText(text).width <= room) return text;
      const count = Math.floor(room / 6);
      return count < 3 ? "" : `${text.slice(0, count - 1)}…`;
    }

    drawColumns(view, lane, parts, least = 0.12) {
      const { context, left, top, width, min, max } = view;
      const count = Math.ceil(width);
      const base = top + lane.top + lane.height;
      const below = new Float32Array(count);
      for (const { look, shares } of parts) {
        if (!shares) continue;
        context.fillStyle = this.fill(look);
        context.beginPath();
        let column = 0;
        while (column < count) {
          if (shares[column] <= 1e-7) { column += 1; continue; }
          // One outline for each run of columns: up along the tops, back along what lies below.
          const first = column;
          const tops = [];
          while (column < count && shares[column] > 1e-7) {
            const height = Math.max(shares[column] * lane.height, least * lane.height);
            tops.push(Math.min(lane.height, below[column] + height));
            column += 1;
          }
          context.moveTo(left + first, base - below[first]);
          tops.forEach((height, place) => {
            context.lineTo(left + first + place, base - height);
            context.lineTo(left + first + place + 1, base - height);
          });
          for (let place = tops.length - 1; place >= 0; place -= 1) {
            context.lineTo(left + first + place + 1, base - below[first + place]);
            context.lineTo(left + first + place, base - below[first + place]);
          }
          tops.forEach((height, place) => { below[first + place] = height; });
        }
        context.fill();
      }
    }

    /** Boxes where they claim at most 2 % of the view more than their events took, else null. */
    boxRange(lane, min, max, width) {
      const packed = lane.lane.boxes;
      if (!packed) return null;
      const estimate = (packed.start[1] * (max - min)) / (this.full[1] - this.full[0]);
      if (estimate > MOST_BOXES && !lane.lane.unpacked) return null;
      const boxes = this.boxes(lane.lane);
      const [first, last] = boxes.range(min, max);
      if (last - first > MOST_BOXES) return null;
      const pixel = (max - min) / width;
      let claimed = 0;
      for (let place = first; place < last; place += 1) claimed += Math.max(0, pixel - boxes.length[place]);
      return { boxes, first, last, few: claimed <= 0.02 * (max - min) };
    }

    drawLane(view, lane) {
      const { min, max, width } = view;
      const count = Math.ceil(width);
      const range = this.boxRange(lane, min, max, width);
      lane.boxed = Boolean(range && range.few);
      if (lane.boxed && !this.packed.brief_ns) return this.drawBoxes(view, lane, range);
      const sets = this.sets(lane.lane);
      const parts = sets.map(({ look, set }) => ({ look, shares: set.shares(min, min + (count * (max - min)) / width, count) }));
      if (range && !this.packed.brief_ns && sets.length === 1 && !sets[0].set.exact) parts[0].shares = this.boxShares(range, view, count);
      this.drawColumns(view, lane, parts);
      if (lane.boxed) this.drawBoxes(view, lane, range);
      return undefined;
    }

    boxShares({ boxes, first, last }, { min, max, width }, count) {
      const pixel = (max - min) / width;
      const out = new Float32Array(count);
      for (let place = first; place < last; place += 1) {
        const from = Math.max(0, (boxes.start[place] - min) / pixel);
        const to = Math.min(count, (boxes.start[place] + boxes.length[place] - min) / pixel);
        for (let column = Math.floor(from); column < to; column += 1) {
          out[column] = Math.min(1, out[column] + Math.min(to, column + 1) - Math.max(from, column));
        }
      }
      return out;
    }

    subrow(lane, boxes, place) {
      const streams = lane.lane.streams.length;
      if (!boxes.subrow || streams < 2) return [lane.top, lane.height];
      const rows = Math.min(streams, MOST_SUBROWS);
      const height = lane.height / rows;
      return [lane.top + Math.min(boxes.subrow[place], rows - 1) * height, height - 1];
    }

    drawBoxes(view, lane, { boxes, first, last }) {
      const { context, top, x, left, width } = view;
      const { name } = lane.lane;
      context.textBaseline = "middle";
      context.textAlign = "left";
      context.font = "10.5px system-ui, sans-serif";
      for (let place = first; place < last; place += 1) {
        const start = boxes.start[place];
        const end = start + boxes.length[place];
        const [at, height] = this.subrow(lane, boxes, place);
        const from = Math.max(x(start), left - 2);
        const to = Math.min(x(end), left + width + 2);
        const wide = Math.max(to - from - (to - from > 4 ? 0.7 : 0), 1);
        let look = name;
        if (boxes.wait) {
          const wait = boxes.wait[place];
          if (!wait) look = "unsplit";
          else {
            look = "transfer";
            const middle = Math.min(Math.max(x(start + wait - 1), from), to);
            if (middle > from) {
              context.fillStyle = this.fill("wait");
              context.fillRect(from, top + at, middle - from, height);
              if (middle - from > 1) look = "wait";
            }
            if (wait - 1 < boxes.length[place]) {
              context.fillStyle = this.fill("transfer");
              context.fillRect(middle, top + at, Math.max(from + wide - middle, 1), height);
            }
          }
        }
        if (!boxes.wait || look === "unsplit") {
          context.fillStyle = this.fill(look);
          context.fillRect(from, top + at, wide, height);
        }
        if (wide > 34 && height >= 11) {
          context.fillStyle = this.inkOn(look);
          context.fillText(this.fitted(context, this.packed.names[boxes.name[place]], wide - 8), from + 4, top + at + height / 2 + 0.5);
        }
      }
    }

    drawHost(view, lane) {
      const { context, top, min, max, width, x, left } = view;
      lane.rank.phaseSets ??= lane.rank.phases.map((phase) => ({ ...phase, set: new Pieces(this.columns, phase.set) }));
      context.font = "9px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.textAlign = "left";
      for (const { set, fill, ink, label } of lane.rank.phaseSets) {
        const first = after(set.end, min);
        const last = after(set.start, max);
        if (last - first > 4 * width) continue;
        for (let place = first; place < last; place += 1) {
          const from = Math.max(x(set.start[place]), left - 2);
          const wide = Math.max(Math.min(x(set.end[place]), left + width + 2) - from, 0.5);
          context.fillStyle = fill;
          context.fillRect(from, top + lane.top, wide, lane.height);
          if (wide > 12) {
            context.strokeStyle = this.paint.soft;
            context.lineWidth = 0.5;
            context.strokeRect(from, top + lane.top + 0.25, wide, lane.height - 0.5);
          }
          if (wide > 30) {
            context.fillStyle = ink;
            context.fillText(this.fitted(context, label, wide - 6), from + 3, top + lane.top + lane.height / 2 + 0.5);
          }
        }
      }
    }

    pathLook(kind) {
      return { unmatched_communication: "unsplit" }[kind] ?? (this.looks[kind] ? kind : kind === "host" || kind === "sync" ? "host" : "inferred");
    }

    /** Pieces tile the path: those narrower than three pixels are drawn as shares of their columns, the others as boxes. */
    drawPath(view, lane) {
      const { context, top, min, max, width, x, left, scale } = view;
      const { rows, partial } = this.path;
      const height = lane.height / rows;
      const tall = height - (rows > 1 ? 1 : 0);
      const count = Math.ceil(width);
      const shares = new Map();
      const wide = [];
      for (const piece of this.pathBetween(min, max)) {
        if (piece.length * scale > 3) { wide.push(piece); continue; }
        const key = `${Math.min(piece.subrow, rows - 1)}:${this.pathLook(piece.kind)}`;
        if (!shares.has(key)) shares.set(key, new Float32Array(count));
        const share = shares.get(key);
        const from = Math.max(0, (piece.start - min) * scale);
        const to = Math.min(count, (piece.end - min) * scale);
        for (let column = Math.floor(from); column < to; column += 1) share[column] += Math.min(to, column + 1) - Math.max(from, column);
      }
      if (partial) {
        context.fillStyle = this.paint.rule;
        context.fillRect(left, top + lane.top, width, tall);
      }
      for (let row = 0; row < rows; row += 1) {
        const looks = Object.keys(this.looks).filter((look) => shares.has(`${row}:${look}`));
        this.drawColumns(view, { top: lane.top + row * height, height: tall }, looks.map((look) => ({ look, shares: shares.get(`${row}:${look}`) })), 0);
      }
      context.font = "10px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.textAlign = "left";
      for (const piece of wide) {
        const at = top + lane.top + Math.min(piece.subrow, rows - 1) * height;
        const from = Math.max(x(piece.start), left - 2);
        const to = Math.min(x(piece.end), left + width + 2);
        const look = this.pathLook(piece.kind);
        context.fillStyle = this.fill(look);
        context.fillRect(from, at, to - from - (to - from > 8 ? 0.6 : 0), tall);
        if (to - from > 26) {
          context.fillStyle = this.inkOn(look);
          context.fillText(this.fitted(context, this.pieceTitle(piece), to - from - 6), from + 3, at + tall / 2);
        }
      }
    }

    pieceTitle(piece) {
      return `${piece.rank < 0 ? "" : `r${piece.rank} `}${piece.kind.replaceAll("_", " ")}`;
    }

    laneOf(rank, kind) {
      const name = { transfer: "communication", unmatched_communication: "communication", wait: "communication" }[kind] ?? kind;
      return this.lanes.find((lane) => lane.kind === "lane" && lane.rank.rank === rank && lane.lane.name === name);
    }

    drawPathOver(view) {
      const { context, top, min, max, scale, x } = view;
      context.fillStyle = this.paint.mark;
      const found = new Map();
      for (const piece of this.pathBetween(min, max)) {
        if (piece.length * scale < 1) continue;
        const key = `${piece.rank}:${piece.kind}`;
        if (!found.has(key)) found.set(key, this.laneOf(piece.rank, piece.kind) ?? null);
        const lane = found.get(key);
        if (lane) context.fillRect(x(piece.start), top + lane.top + lane.height - 1, piece.length * scale, 2.5);
      }
    }

    drawSteps(view) {
      const { context, top, min, max, x, left, width } = view;
      context.font = "10px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.textAlign = "left";
      for (const header of this.headers) {
        const { windows } = header.rank;
        const first = Math.max(0, after(windows.start, min) - 1);
        const last = after(windows.start, max);
        const every = Math.max(1, Math.ceil((44 * (last - first)) / width));
        for (let place = first; place < last; place += 1) {
          if (windows.step[place] % every) continue;
          const from = x(windows.start[place]);
          const to = x(windows.start[place] + windows.length[place]);
          context.fillStyle = this.paint.rule;
          context.fillRect(Math.round(from), top + header.top, 1, header.bottom - header.top - 2);
          if (!header.named) continue;
          const room = every > 1 ? 60 : Math.min(to, left + width) - Math.max(from, left) - 8;
          context.fillStyle = this.paint.soft;
          const label = this.packed.steps[windows.step[place]] + (windows.warm[place] ? " (warm-up)" : "");
          context.fillText(this.fitted(context, label, room), Math.max(from, left) + 4, top + header.top + 8);
        }
      }
    }

    drawMark({ context, top, x, left, width }) {
      if (!this.mark) return;
      context.strokeStyle = this.paint.mark;
      context.lineWidth = 2;
      for (const { rank, from, to, lane } of this.mark.places) {
        const header = this.headers.find((one) => one.rank.rank === rank);
        if (!header) continue;
        const on = lane && this.lanes.find((one) => one.kind === "lane" && one.rank === header.rank && one.lane.name === lane);
        const [at, height] = on ? [on.top - 2, on.height + 4] : [header.begin, header.bottom - header.begin];
        const begin = Math.max(x(from), left - 4);
        const end = Math.min(Math.max(x(to), begin + 3), left + width + 4);
        if (end < left || begin > left + width) continue;
        context.strokeRect(begin - 1, top + at, end - begin + 2, height);
      }
    }

    /* --- moving --------------------------------------------------------------------------------------------- */

    zoom(from, to) {
      const [low, high] = this.full;
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
      const by = Math.max(this.full[0] - min, Math.min(this.full[1] - max, share * (max - min)));
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

    tell() {
      const [min, max] = this.view;
      if (min === undefined) return;
      byId("timeline-view").textContent = `${this.clock(min, 1000)} to ${this.clock(max, 1000)} ms, ${duration(max - min)} shown`;
    }

    /* --- what lies under the pointer -------------------------------------------------------------------------- */

    hit() {
      const { left, top } = this.plot.cursor;
      if (left === undefined || left < 0) return null;
      const time = this.plot.posToVal(left, "x");
      const lane = this.lanes.find((one) => top >= one.top && top < one.top + one.height);
      if (!lane) return null;
      const [min, max] = this.view;
      const pixel = (max - min) / this.plot.over.clientWidth;
      if (lane.kind === "path") {
        const { rows } = this.path;
        const row = Math.min(rows - 1, Math.floor(((top - lane.top) / lane.height) * rows));
        const near = this.pathBetween(time - pixel, time + pixel).filter((piece) => Math.min(piece.subrow, rows - 1) === row);
        const piece = near.sort((a, b) => b.length - a.length)[0];
        return { lane, time, piece };
      }
      if (lane.kind === "lane" && lane.lane.boxes) {
        const range = this.boxRange(lane, time - pixel, time + pixel, 2);
        if (range) {
          let best = -1;
          for (let place = range.first; place < range.last; place += 1) {
            const [at, height] = this.subrow(lane, range.boxes, place);
            if (top < at - 1 || top > at + height + 1) continue;
            if (best < 0 || range.boxes.length[place] > range.boxes.length[best]) best = place;
          }
          if (best >= 0) return { lane, time, boxes: range.boxes, box: best, others: range.last - range.first - 1 };
        }
      }
      return { lane, time, pixel };
    }

    lines(found) {
      const { lane, time } = found;
      const who = lane.rank ? `rank ${lane.rank.rank}` : "";
      if (found.piece) {
        const { piece } = found;
        return [
          ["critical path", piece.kind.replaceAll("_", " ")],
          ["where", piece.rank < 0 ? "before a rank's first call" : `rank ${piece.rank}`],
          ["name", piece.name || "–"],
          ["start", `${this.clock(piece.start, 1)} ms`],
          ["duration", duration(piece.length)],
        ];
      }
      if (found.boxes) {
        const { boxes, box } = found;
        const stream = lane.lane.streams[boxes.subrow ? boxes.subrow[box] : 0];
        const made = [
          [who, lane.label],
          ["name", this.packed.names[boxes.name[box]]],
          ["start", `${this.clock(boxes.start[box], 1)} ms`],
          ["duration", duration(boxes.length[box])],
          ["stream", String(stream)],
        ];
        if (boxes.wait && boxes.wait[box]) {
          made.push(["wait", duration(boxes.wait[box] - 1)], ["transfer", duration(boxes.length[box] - boxes.wait[box] + 1)]);
        }
        const row = this.rowAt(lane.rank.rank, boxes.start[box]);
        if (row) {
          if (row.bytes !== null) made.push(["payload", size(row.bytes)]);
          if (row.busbw_gbps !== null) made.push(["bus bandwidth", `${shown.float(row.busbw_gbps)} GB/s`]);
          if (row.last_rank !== null) made.push(["last to arrive", `rank ${row.last_rank}`]);
          made.push(["hidden", duration(row.hidden_ns)], ["exposed", duration(row.exposed_ns)]);
          const bucket = this.bucketOf.get(`${row.rank}:${row.start_ns}`);
          if (bucket !== undefined) made.push(["bucket", String(bucket)]);
          if (row.step !== null) made.push(["launched in", [row.step, row.phase].filter(Boolean).join(", ")]);
        }
        return made;
      }
      if (lane.kind === "host") {
        const phase = (lane.rank.phaseSets ?? []).filter(({ set }) => set.covered(time, time + 1) > 0).pop();
        return [[who, "host"], ["phase", phase ? phase.label : "none"], ["at", `${this.clock(time, 1)} ms`]];
      }
      if (lane.kind === "path") return [["critical path", ""], ["at", `${this.clock(time, 1)} ms`]];
      const pixel = found.pixel;
      const made = [[who, lane.label], ["at", `${this.clock(time, 1)} ms`]];
      for (const { look, set } of this.sets(lane.lane)) {
        const covered = set.covered(time - pixel / 2, time + pixel / 2);
        if (covered > 0) made.push([this.looks[look].label, `${grouped((100 * covered) / pixel, 0)} % of this ${duration(pixel)}`]);
      }
      return made;
    }

    rowAt(rank, start) {
      const index = this.byStart.get(`${rank}:${start}`);
      return index === undefined ? null : tables.collective.row(index);
    }

    hover(plot) {
      const found = this.hit();
      if (!found) { this.tip.hidden = true; return; }
      const list = make("dl");
      for (const [term, text] of this.lines(found)) list.append(make("dt", term), make("dd", text));
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
      const found = this.hit();
      if (!found) return;
      if (found.lane.rank) this.rank = found.lane.rank.rank;
      const places = [];
      if (found.boxes) {
        const from = found.boxes.start[found.box];
        places.push({ rank: this.rank, from, to: from + found.boxes.length[found.box], lane: found.lane.lane.name });
        const row = this.rowAt(this.rank, from);
        if (row && row.collective_id !== null) places.push(...this.counterparts(row));
      }
      this.mark = places.length ? { places } : null;
      this.detail(this.lines(found));
      this.syncControls();
      this.plot.redraw(false);
    }

    counterparts(row) {
      return (this.ofCollective.get(row.collective_id) ?? []).map((index) => {
        const one = tables.collective.row(index);
        return { rank: one.rank, from: one.start_ns - this.packed.origin_ns, to: one.end_ns - this.packed.origin_ns, lane: "communication" };
      });
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
      this.mark = { places: places ?? [{ rank: this.rank, from, to, lane }] };
      const span = Math.max(to - from, 1);
      this.zoom(from - air * span, to + air * span);
      this.detail([["place", title], ["from", `${this.clock(from, 1)} ms`], ["duration", duration(to - from)]]);
      this.syncControls();
      this.plot.redraw(false);
      this.reveal();
    }

    /** Bring the rank into the window, below the page's bar. */
    reveal() {
      const header = this.headers.find((one) => one.rank.rank === this.rank);
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
      for (const one of this.ranks) {
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
      this.show({ rank: rank ?? this.rank, from, to, places, title: this.packed.steps[step], air: 0.04 });
    }

    showCollective(row) {
      const one = typeof row === "number" ? tables.collective.row(row) : row;
      const origin = this.packed.origin_ns;
      const places = one.collective_id === null ? [] : this.counterparts(one);
      if (!places.length) places.push({ rank: one.rank, from: one.start_ns - origin, to: one.end_ns - origin, lane: "communication" });
      this.rank = one.rank;
      this.at = this.byStart.get(`${one.rank}:${one.start_ns - origin}`);
      this.show({
        rank: one.rank,
        from: Math.min(...places.map((place) => place.from)),
        to: Math.max(...places.map((place) => place.to)),
        places,
        title: `${one.kind.replaceAll("_", " ")} on rank ${one.rank}${one.step === null ? "" : `, ${one.step}`}`,
      });
      const start = one.start_ns - origin;
      for (const lane of this.lanes) {
        if (lane.kind !== "lane" || lane.rank.rank !== one.rank || lane.lane.name !== "communication" || !lane.lane.boxes) continue;
        const boxes = this.boxes(lane.lane);
        const box = after(boxes.start, start) - 1;
        if (box >= 0 && boxes.start[box] === start) this.detail(this.lines({ lane, boxes, box, time: start }));
      }
    }

    stepCollective(by) {
      const rows = this.ofRank.get(this.rank) ?? [];
      if (!rows.length) return;
      let place = rows.indexOf(this.at);
      if (place < 0) {
        const start = tables.collective.column("start_ns").values;
        const [min] = this.view;
        place = rows.findIndex((row) => start[row] - this.packed.origin_ns >= min);
        if (place < 0) place = rows.length - 1;
      } else place = Math.max(0, Math.min(rows.length - 1, place + by));
      this.showCollective(rows[place]);
    }

    stepStep(by) {
      const steps = this.stepNumbers;
      if (!steps.length) return;
      const place = steps.indexOf(this.step);
      this.showStep(steps[place < 0 ? 0 : Math.max(0, Math.min(steps.length - 1, place + by))]);
    }

    showRow(table, row) {
      if (table === "collective") this.showCollective(row);
      else if (table === "bucket") {
        const origin = this.packed.origin_ns;
        const index = this.byStart.get(`${row.rank}:${row.started_ns - origin}`);
        if (index !== undefined) this.showCollective(index);
        else this.show({ rank: row.rank, from: row.started_ns - origin, to: row.ended_ns - origin, lane: "communication", title: `bucket ${row.bucket}` });
      } else if (table === "overlap") {
        if (row.step_index === null) this.show({ rank: row.rank, from: this.full[0], to: this.full[1], title: `rank ${row.rank}`, air: 0 });
        else this.showStep(row.step_index, row.rank);
      }
    }

    /* --- controls --------------------------------------------------------------------------------------------------- */

    controls() {
      const press = (id, act) => byId(id)?.addEventListener("click", act);
      press("zoom-in", () => this.scaleBy(0.5));
      press("zoom-out", () => this.scaleBy(2));
      press("pan-left", () => this.pan(-0.4));
      press("pan-right", () => this.pan(0.4));
      press("zoom-reset", () => { this.mark = null; this.zoom(...this.full); });
      press("previous-collective", () => this.stepCollective(-1));
      press("next-collective", () => this.stepCollective(1));
      const lanes = byId("all-lanes");
      lanes.checked = !this.compact;
      lanes.addEventListener("change", () => { this.compact = !lanes.checked; this.rebuild(); });
      const over = byId("path-over");
      if (over) {
        over.checked = this.pathOver;
        over.addEventListener("change", () => { this.pathOver = over.checked; this.plot.redraw(false); });
      }
      this.rankSelect = byId("go-rank");
      for (const { rank } of this.ranks) this.rankSelect.append(make("option", `rank ${rank}`, { value: String(rank) }));
      this.rankSelect.addEventListener("change", () => { this.rank = Number(this.rankSelect.value); this.at = undefined; this.plot.redraw(false); this.syncControls(); this.reveal(); });
      this.stepSelect = byId("go-step");
      this.stepNumbers = [...new Set(this.ranks.flatMap((rank) => [...rank.windows.step]))].sort((a, b) => a - b);
      for (const step of this.stepNumbers) this.stepSelect.append(make("option", this.packed.steps[step], { value: String(step) }));
      this.stepSelect.disabled = !this.stepNumbers.length;
      this.stepSelect.addEventListener("change", () => this.stepSelect.value !== "" && this.showStep(Number(this.stepSelect.value)));
      this.bucketSelect = byId("go-bucket");
      this.bucketSelect.addEventListener("change", () => this.bucketSelect.value !== "" && this.showCollective(Number(this.bucketSelect.value)));
      this.pathSelect = byId("go-path");
      if (this.pathSelect && this.path) {
        const longest = [...this.path.pieces.keys()].sort((a, b) => this.path.pieces[b].length - this.path.pieces[a].length || a - b).slice(0, 40);
        for (const place of longest) {
          const piece = this.path.pieces[place];
          this.pathSelect.append(make("option", `${duration(piece.length)} ${this.pieceTitle(piece)}`, { value: String(place) }));
        }
        this.pathSelect.addEventListener("change", () => this.pathSelect.value !== "" && this.showPiece(Number(this.pathSelect.value)));
      }
      this.canvasHost.addEventListener("keydown", (event) => this.key(event));
      window.addEventListener("beforeprint", () => this.print(true));
      window.addEventListener("afterprint", () => this.print(false));
      this.syncControls();
    }

    showPiece(place) {
      const piece = this.path.pieces[place];
      const rank = piece.rank < 0 ? this.rank : piece.rank;
      this.show({ rank, from: piece.start, to: piece.end, lane: this.laneOf(piece.rank, piece.kind)?.lane.name, title: `critical path: ${this.pieceTitle(piece)} ${piece.name}` });
    }

    /** For paper: the part shown, light, in pictures that each fit a page and are cut between ranks. */
    print(on) {
      const host = byId("timeline-printed");
      host.replaceChildren();
      if (!on) return;
      const [WIDE, MOST, RATIO, AXIS] = [1040, 600, 2, 24];
      const [min, max] = this.view;
      const width = WIDE - LEFT - 12;
      const cuts = [0];
      const ends = [...this.headers.slice(1).map((header) => header.begin), this.tall];
      ends.forEach((end, place) => {
        if (end - cuts[cuts.length - 1] > MOST && place) cuts.push(ends[place - 1]);
      });
      cuts.push(this.tall);
      this.printing = true;
      this.paints();
      for (let place = 0; place + 1 < cuts.length; place += 1) {
        const [first, last] = [cuts[place], cuts[place + 1]];
        if (last <= first) continue;
        const canvas = make("canvas", null, { width: WIDE * RATIO, height: (last - first + AXIS) * RATIO });
        const context = canvas.getContext("2d");
        context.scale(RATIO, RATIO);
        context.fillStyle = this.paint.paper;
        context.fillRect(0, 0, WIDE, last - first + AXIS);
        this.drawAxis(context, min, max, width);
        context.beginPath();
        context.rect(0, AXIS, WIDE, last - first);
        context.clip();
        this.drawOn({ context, left: LEFT, top: AXIS - first, width, min, max });
        host.append(canvas);
      }
      this.printing = false;
      this.paints();
    }

    drawAxis(context, min, max, width) {
      const { origin_ns: origin } = this.packed;
      const increment = this.increments().find((one) => (one * width) / (max - min) >= 84);
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (let at = Math.ceil((min + origin) / increment) * increment; at <= max + origin; at += increment) {
        const x = LEFT + ((at - origin - min) * width) / (max - min);
        context.fillStyle = this.paint.soft;
        context.fillText(this.clock(at - origin, increment), x, 9);
        context.fillStyle = this.paint.rule;
        context.fillRect(x, 18, 1, 5);
      }
    }

    syncControls() {
      this.rankSelect.value = String(this.rank);
      const rows = this.ofRank.get(this.rank) ?? [];
      const table = tables.collective;
      const wanted = this.step === undefined ? undefined : this.packed.steps[this.step];
      const key = `${this.rank}:${wanted}`;
      if (this.bucketKey === key) return;
      this.bucketKey = key;
      this.bucketSelect.replaceChildren(make("option", tables.bucket ? "bucket or collective…" : "collective…", { value: "" }));
      this.bucketSelect.disabled = !rows.length;
      if (!table) return;
      const step = table.column("step").values;
      let number = 0;
      for (const index of rows.filter((row) => wanted === undefined || step[row] === wanted).slice(0, 500)) {
        const row = table.row(index);
        number += 1;
        const known = this.bucketOf.get(`${row.rank}:${row.start_ns}`);
        const bucket = known === undefined ? "" : `bucket ${known}: `;
        const where = wanted === undefined && row.step !== null ? `${row.step}: ` : "";
        this.bucketSelect.append(make("option", `${where}${bucket || `${number} `}${row.kind.replaceAll("_", " ")}${row.bytes === null ? "" : ` ${size(row.bytes)}`}`, { value: String(index) }));
      }
    }

    key(event) {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const places = this.ranks.map((rank) => rank.rank);
      const turn = (by) => {
        const place = places.indexOf(this.rank) + by;
        if (place < 0 || place >= places.length) return;
        this.rank = places[place];
        this.at = undefined;
        this.says.textContent = `rank ${this.rank}`;
        this.syncControls();
        this.plot.redraw(false);
        this.reveal();
      };
      const acts = {
        ArrowLeft: () => this.pan(-0.2),
        ArrowRight: () => this.pan(0.2),
        ArrowUp: () => turn(-1),
        ArrowDown: () => turn(1),
        "+": () => this.scaleBy(0.5),
        "=": () => this.scaleBy(0.5),
        "-": () => this.scaleBy(2),
        0: () => this.zoom(...this.full),
        Home: () => this.zoom(...this.full),
        "]": () => this.stepStep(1),
        "[": () => this.stepStep(-1),
        ".": () => this.stepCollective(1),
        ",": () => this.stepCollective(-1),
        Escape: () => { this.mark = null; this.tip.hidden = true; this.plot.redraw(false); },
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    }
  }

  let timeline = null;
  const host = byId("timeline-plot");
  if (host) timeline = new Timeline(byId("timeline"), read("timeline-data"), read("timeline-looks"));

  /* --- links from findings and rows ----------------------------------------------------------------------------------- */

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-place], [data-rows]");
    if (!link) return;
    if (link.dataset.rows) {
      const { table, mark, ...facets } = JSON.parse(link.dataset.rows);
      if (!tables[table]) return;
      event.preventDefault();
      tables[table].filter(facets);
      const section = tables[table].host.closest("section");
      section.scrollIntoView();
      section.querySelector(".scroll").focus({ preventScroll: true });
      return;
    }
    if (!timeline) return;
    event.preventDefault();
    const place = JSON.parse(link.dataset.place);
    byId("timeline").scrollIntoView();
    if (place.collective !== undefined) {
      const row = place.collective;
      timeline.showCollective(row);
      tables.collective.filter({});
      tables.collective.mark(row);
    } else if (place.step !== undefined) timeline.showStep(place.step, place.rank);
    else timeline.show({ rank: place.rank, from: place.from, to: place.to, lane: place.lane, title: link.dataset.title ?? link.textContent, air: place.air ?? 0.1 });
    timeline.canvasHost.focus({ preventScroll: true });
  });

  root.dataset.ready = "yes";
})();
