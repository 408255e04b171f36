/** The timeline on a canvas: lanes, steps, the critical path, what is marked, and the axis on paper. */

import { LEFT } from "./layout.mjs";
import { after } from "./packed.mjs";
import { INCREMENTS, ROOM } from "./run.mjs";
import { isDark } from "./theme.mjs";

export class Painter {
  constructor(run, looks, layout) {
    this.run = run;
    this.looks = looks;
    this.layout = layout;
    this.mix();
  }

  /** The page's colours, or those of paper. */
  mix(printing = false) {
    const style = getComputedStyle(document.documentElement);
    const dark = printing ? false : isDark();
    const get = (name) => style.getPropertyValue(name).trim();
    this.paint = printing
      ? { ink: "#1a1c1f", soft: "#5f6670", rule: "#c9cdd2", track: "#f3f4f6", paper: "#ffffff", mark: "#b00060" }
      : { ink: get("--ink"), soft: get("--soft"), rule: get("--rule"), track: get("--track"), paper: get("--paper"), mark: get("--mark") };
    this.fill = (key) => (this.looks[key] ?? this.looks.idle)[dark ? "dark" : "fill"];
    this.inkOn = (key) => (this.looks[key] ?? this.looks.idle)[dark ? "dark_ink" : "ink"];
  }

  /** Draw all lanes: ``left`` and ``top`` say where they begin, ``width`` how much room the time has. */
  draw({ context, left, top, width, min, max }, { rank, mark, pathOver }) {
    const view = { context, left, top, width, min, max, scale: width / (max - min) };
    view.x = (time) => left + (time - min) * view.scale;
    this.drawLabels(view, rank);
    context.beginPath();
    context.rect(left, top, width, this.layout.tall);
    context.clip();
    for (const lane of this.layout.lanes) {
      context.fillStyle = this.paint.track;
      context.fillRect(left, top + lane.top, width, lane.height);
      if (lane.kind === "lane") this.drawLane(view, lane);
      else if (lane.kind === "host") this.drawHost(view, lane);
      else this.drawPath(view, lane);
    }
    this.drawSteps(view);
    if (this.run.path && pathOver) this.drawPathOver(view);
    if (mark) this.drawMark(view, mark);
  }

  drawLabels({ context, top }, chosen) {
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const header of this.layout.headers) {
      const { rank } = header;
      const middle = top + (this.layout.dense ? header.bottom - 18 : header.top + 8);
      context.fillStyle = rank.rank === chosen ? this.paint.mark : this.paint.ink;
      context.font = "600 12px system-ui, sans-serif";
      context.fillText(`rank ${rank.rank}`, 2, middle);
      const wide = context.measureText(`rank ${rank.rank}`).width;
      context.fillStyle = this.paint.soft;
      context.font = "10px system-ui, sans-serif";
      context.fillText(this.fitted(context, rank.place[0] ?? "", LEFT - wide - 16), wide + 8, middle);
    }
    context.textAlign = "right";
    for (const lane of this.layout.lanes) {
      if (this.layout.dense && lane.kind === "lane") continue;
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

  drawLane(view, lane) {
    const { min, max, width } = view;
    const count = Math.ceil(width);
    const range = this.run.boxRange(lane.lane, min, max, width);
    const boxed = range && range.few;
    if (boxed && !this.run.packed.brief_ns) return this.drawBoxes(view, lane, range);
    const sets = this.run.sets(lane.lane);
    const parts = sets.map(({ look, set }) => ({ look, shares: set.shares(min, min + (count * (max - min)) / width, count) }));
    if (range && !this.run.packed.brief_ns && sets.length === 1 && !sets[0].set.exact) parts[0].shares = this.boxShares(range, view, count);
    this.drawColumns(view, lane, parts);
    if (boxed) this.drawBoxes(view, lane, range);
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

  drawBoxes(view, lane, { boxes, first, last }) {
    const { context, top, x, left, width } = view;
    const { name } = lane.lane;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.font = "10.5px system-ui, sans-serif";
    for (let place = first; place < last; place += 1) {
      const start = boxes.start[place];
      const end = start + boxes.length[place];
      const [at, height] = this.layout.subrow(lane, boxes, place);
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
        context.fillText(this.fitted(context, this.run.packed.names[boxes.name[place]], wide - 8), from + 4, top + at + height / 2 + 0.5);
      }
    }
  }

  drawHost(view, lane) {
    const { context, top, min, max, width, x, left } = view;
    context.font = "9px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const { set, fill, ink, label } of this.run.phases(lane.rank)) {
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
    const { rows, partial } = this.run.path;
    const height = lane.height / rows;
    const tall = height - (rows > 1 ? 1 : 0);
    const count = Math.ceil(width);
    const shares = new Map();
    const wide = [];
    for (const piece of this.run.pathBetween(min, max)) {
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
        context.fillText(this.fitted(context, this.run.pieceTitle(piece), to - from - 6), from + 3, at + tall / 2);
      }
    }
  }

  drawPathOver(view) {
    const { context, top, min, max, scale, x } = view;
    context.fillStyle = this.paint.mark;
    const found = new Map();
    for (const piece of this.run.pathBetween(min, max)) {
      if (piece.length * scale < 1) continue;
      const key = `${piece.rank}:${piece.kind}`;
      if (!found.has(key)) found.set(key, this.layout.laneOf(piece.rank, piece.kind) ?? null);
      const lane = found.get(key);
      if (lane) context.fillRect(x(piece.start), top + lane.top + lane.height - 1, piece.length * scale, 2.5);
    }
  }

  drawSteps(view) {
    const { context, top, min, max, x, left, width } = view;
    context.font = "10px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const header of this.layout.headers) {
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
        const label = this.run.packed.steps[windows.step[place]] + (windows.warm[place] ? " (warm-up)" : "");
        context.fillText(this.fitted(context, label, room), Math.max(from, left) + 4, top + header.top + 8);
      }
    }
  }

  drawMark({ context, top, x, left, width }, mark) {
    context.strokeStyle = this.paint.mark;
    context.lineWidth = 2;
    for (const { rank, from, to, lane } of mark.places) {
      const header = this.layout.header(rank);
      if (!header) continue;
      const on = lane && this.layout.lanes.find((one) => one.kind === "lane" && one.rank === header.rank && one.lane.name === lane);
      const [at, height] = on ? [on.top - 2, on.height + 4] : [header.begin, header.bottom - header.begin];
      const begin = Math.max(x(from), left - 4);
      const end = Math.min(Math.max(x(to), begin + 3), left + width + 4);
      if (end < left || begin > left + width) continue;
      context.strokeRect(begin - 1, top + at, end - begin + 2, height);
    }
  }

  drawAxis(context, min, max, width) {
    const increment = INCREMENTS.find((one) => (one * width) / (max - min) >= ROOM);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const at of this.run.ticks(min, max, increment)) {
      const x = LEFT + ((at - min) * width) / (max - min);
      context.fillStyle = this.paint.soft;
      context.fillText(this.run.clock(at, increment), x, 9);
      context.fillStyle = this.paint.rule;
      context.fillRect(x, 18, 1, 5);
    }
  }
}
