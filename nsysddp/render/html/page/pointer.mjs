/** What lies under the pointer, and what can be said of it. */

import { duration, grouped, shown, size } from "./numbers.mjs";

/** The lane, and what in it, at a height and a time; ``pixel`` is how much time one is. */
export const under = (run, layout, { top, time, pixel }) => {
  const lane = layout.at(top);
  if (!lane) return null;
  if (lane.kind === "path") {
    const { rows } = run.path;
    const row = Math.min(rows - 1, Math.floor(((top - lane.top) / lane.height) * rows));
    const near = run.pathBetween(time - pixel, time + pixel).filter((piece) => Math.min(piece.subrow, rows - 1) === row);
    const piece = near.sort((a, b) => b.length - a.length)[0];
    return { lane, time, piece };
  }
  if (lane.kind === "lane" && lane.lane.boxes) {
    const range = run.boxRange(lane.lane, time - pixel, time + pixel, 2);
    if (range) {
      let best = -1;
      for (let place = range.first; place < range.last; place += 1) {
        const [at, height] = layout.subrow(lane, range.boxes, place);
        if (top < at - 1 || top > at + height + 1) continue;
        if (best < 0 || range.boxes.length[place] > range.boxes.length[best]) best = place;
      }
      if (best >= 0) return { lane, time, boxes: range.boxes, box: best, others: range.last - range.first - 1 };
    }
  }
  return { lane, time, pixel };
};

const ofPiece = (run, piece) => [
  ["critical path", piece.kind.replaceAll("_", " ")],
  ["where", piece.rank < 0 ? "before a rank's first call" : `rank ${piece.rank}`],
  ["name", piece.name || "–"],
  ["start", `${run.clock(piece.start, 1)} ms`],
  ["duration", duration(piece.length)],
];

const ofCollective = (run, row) => {
  const made = [];
  if (row.bytes !== null) made.push(["payload", size(row.bytes)]);
  if (row.busbw_gbps !== null) made.push(["bus bandwidth", `${shown.float(row.busbw_gbps)} GB/s`]);
  if (row.last_rank !== null) made.push(["last to arrive", `rank ${row.last_rank}`]);
  made.push(["hidden", duration(row.hidden_ns)], ["exposed", duration(row.exposed_ns)]);
  const bucket = run.bucketOf.get(`${row.rank}:${row.start_ns}`);
  if (bucket !== undefined) made.push(["bucket", String(bucket)]);
  if (row.step !== null) made.push(["launched in", [row.step, row.phase].filter(Boolean).join(", ")]);
  return made;
};

const ofBox = (run, { lane, boxes, box }) => {
  const made = [
    [`rank ${lane.rank.rank}`, lane.label],
    ["name", run.packed.names[boxes.name[box]]],
    ["start", `${run.clock(boxes.start[box], 1)} ms`],
    ["duration", duration(boxes.length[box])],
    ["stream", String(lane.lane.streams[boxes.subrow ? boxes.subrow[box] : 0])],
  ];
  if (boxes.wait && boxes.wait[box]) {
    made.push(["wait", duration(boxes.wait[box] - 1)], ["transfer", duration(boxes.length[box] - boxes.wait[box] + 1)]);
  }
  const row = run.rowAt(lane.rank.rank, boxes.start[box]);
  return row ? [...made, ...ofCollective(run, row)] : made;
};

const ofHost = (run, { lane, time }) => {
  const phase = run.phases(lane.rank).filter(({ set }) => set.covered(time, time + 1) > 0).pop();
  return [[`rank ${lane.rank.rank}`, "host"], ["phase", phase ? phase.label : "none"], ["at", `${run.clock(time, 1)} ms`]];
};

const ofColumn = (run, looks, { lane, time, pixel }) => {
  const made = [[`rank ${lane.rank.rank}`, lane.label], ["at", `${run.clock(time, 1)} ms`]];
  for (const { look, set } of run.sets(lane.lane)) {
    const covered = set.covered(time - pixel / 2, time + pixel / 2);
    if (covered > 0) made.push([looks[look].label, `${grouped((100 * covered) / pixel, 0)} % of this ${duration(pixel)}`]);
  }
  return made;
};

/** Terms and texts about what was found. */
export const lines = (run, looks, found) => {
  if (found.piece) return ofPiece(run, found.piece);
  if (found.boxes) return ofBox(run, found);
  if (found.lane.kind === "host") return ofHost(run, found);
  if (found.lane.kind === "path") return [["critical path", ""], ["at", `${run.clock(found.time, 1)} ms`]];
  return ofColumn(run, looks, found);
};
