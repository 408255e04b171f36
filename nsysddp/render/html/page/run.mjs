/** What the page holds of a run. */

import { grouped } from "./numbers.mjs";
import { Boxes, Columns, Pieces, after } from "./packed.mjs";

const MOST_BOXES = 20000;

/** Pixels between two times on an axis, at least. */
export const ROOM = 84;

/** Round distances between two times, in ns. */
export const INCREMENTS = Array.from({ length: 14 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

/** What the timeline shows, unpacked where it is looked at: ranks, events, the critical path, and each box's row of a table. */
export class Run {
  constructor(packed, tables, text) {
    this.packed = packed;
    this.tables = tables;
    this.columns = new Columns(text);
    this.full = [...packed.view];
    this.ranks = packed.ranks.map((rank) => ({
      ...rank,
      windows: {
        step: this.columns.numbers(rank.windows.step),
        start: this.columns.ascending(rank.windows.start),
        length: this.columns.numbers(rank.windows.length),
        warm: this.columns.numbers(rank.windows.warm),
      },
    }));
    this.path = packed.path && this.unpackPath(packed.path);
    this.stepNumbers = [...new Set(this.ranks.flatMap((rank) => [...rank.windows.step]))].sort((a, b) => a - b);
    this.indexRows();
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
  indexRows() {
    this.byStart = new Map();
    this.ofCollective = new Map();
    this.ofRank = new Map();
    this.bucketOf = new Map();
    const table = this.tables.collective;
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
    if (this.tables.bucket) {
      const [owner, begin, number] = ["rank", "started_ns", "bucket"].map((name) => this.tables.bucket.column(name).values);
      for (let row = 0; row < this.tables.bucket.data.rows; row += 1) this.bucketOf.set(`${owner[row]}:${begin[row]}`, number[row]);
    }
    for (const rows of this.ofRank.values()) rows.sort((a, b) => start[a] - start[b] || a - b);
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

  phases(rank) {
    rank.phaseSets ??= rank.phases.map((phase) => ({ ...phase, set: new Pieces(this.columns, phase.set) }));
    return rank.phaseSets;
  }

  /** Boxes where they claim at most 2 % of the view more than their events took, else null. */
  boxRange(lane, min, max, width) {
    const packed = lane.boxes;
    if (!packed) return null;
    const estimate = (packed.start[1] * (max - min)) / (this.full[1] - this.full[0]);
    if (estimate > MOST_BOXES && !lane.unpacked) return null;
    const boxes = this.boxes(lane);
    const [first, last] = boxes.range(min, max);
    if (last - first > MOST_BOXES) return null;
    const pixel = (max - min) / width;
    let claimed = 0;
    for (let place = first; place < last; place += 1) claimed += Math.max(0, pixel - boxes.length[place]);
    return { boxes, first, last, few: claimed <= 0.02 * (max - min) };
  }

  clock(value, increment) {
    const digits = Math.max(0, 6 - Math.floor(Math.log10(Math.max(increment, 1)) + 1e-9));
    return grouped((value + this.packed.origin_ns) / 1e6, Math.min(digits, 6));
  }

  /** Times that are round on the run's own clock, not from where the page's times begin. */
  ticks(min, max, increment) {
    const { origin_ns: origin } = this.packed;
    const made = [];
    for (let at = Math.ceil((min + origin) / increment) * increment; at <= max + origin; at += increment) made.push(at - origin);
    return made;
  }

  pieceTitle(piece) {
    return `${piece.rank < 0 ? "" : `r${piece.rank} `}${piece.kind.replaceAll("_", " ")}`;
  }

  rowAt(rank, start) {
    const index = this.byStart.get(`${rank}:${start}`);
    return index === undefined ? null : this.tables.collective.row(index);
  }

  counterparts(row) {
    return (this.ofCollective.get(row.collective_id) ?? []).map((index) => {
      const one = this.tables.collective.row(index);
      return { rank: one.rank, from: one.start_ns - this.packed.origin_ns, to: one.end_ns - this.packed.origin_ns, lane: "communication" };
    });
  }
}
