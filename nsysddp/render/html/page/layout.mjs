/** Where each lane of the timeline lies. */

export const LEFT = 132;
const HEIGHTS = { compute: 20, spin: 13, communication: 20, exposed: 12, group: 9, memory: 11, graph: 17, idle: 11, host: 13, path: 20 };
const BRIEF = new Set(["compute", "communication", "exposed", "graph"]);
const MOST_SUBROWS = 4;
const MOST_LABELLED = 16;

/** Which lane of these ranks lies where, from the top; ``compact`` leaves out what many ranks have no room for. */
export class Layout {
  constructor(run, compact, ranks) {
    const lanes = [];
    let top = 4;
    const add = (lane, height) => {
      lanes.push({ ...lane, top, height });
      top += height + (this.dense && lane.kind !== "path" ? 1 : 3);
    };
    const headers = [];
    // Very many ranks: a rank's name takes the place of its lanes' names, and only the first tells the steps.
    this.dense = compact && ranks.length > MOST_LABELLED;
    if (run.path) {
      const height = HEIGHTS.path + 13 * (run.path.rows - 1);
      add({ kind: "path", label: "critical path" }, height);
      top += 8;
    }
    ranks.forEach((rank, place) => {
      const named = !this.dense || !place;
      headers.push({ rank, top, named });
      const begin = top;
      if (named) top += 16;
      if (!compact && rank.phases.length) add({ kind: "host", label: "host", rank, place }, HEIGHTS.host);
      for (const lane of rank.lanes) {
        if (compact && !BRIEF.has(lane.name)) continue;
        const tall = HEIGHTS[lane.name] ?? HEIGHTS.group;
        const streams = Math.min(lane.streams ? lane.streams.length : 1, MOST_SUBROWS);
        const base = compact ? Math.round(tall * (this.dense ? 0.6 : 0.75)) : tall;
        add({ kind: "lane", label: lane.label, lane, rank, place }, base + (streams - 1) * Math.round(base * 0.6));
      }
      headers[headers.length - 1].bottom = top;
      headers[headers.length - 1].begin = begin;
      top += this.dense ? 3 : compact ? 5 : 10;
    });
    this.lanes = lanes;
    this.headers = headers;
    this.tall = top;
  }

  /** The lane at a height, if there is one. */
  at(top) {
    return this.lanes.find((one) => top >= one.top && top < one.top + one.height);
  }

  header(rank) {
    return this.headers.find((one) => one.rank.rank === rank);
  }

  laneOf(rank, kind) {
    const name = { transfer: "communication", unmatched_communication: "communication", wait: "communication" }[kind] ?? kind;
    return this.lanes.find((lane) => lane.kind === "lane" && lane.rank.rank === rank && lane.lane.name === name);
  }

  subrow(lane, boxes, place) {
    const streams = lane.lane.streams.length;
    if (!boxes.subrow || streams < 2) return [lane.top, lane.height];
    const rows = Math.min(streams, MOST_SUBROWS);
    const height = lane.height / rows;
    return [lane.top + Math.min(boxes.subrow[place], rows - 1) * height, height - 1];
  }
}
