/** The timeline on paper: the part shown, light, in pictures that each fit a page and are cut between ranks. */

import { make } from "./dom.mjs";
import { LEFT } from "./layout.mjs";

const WIDE = 1040;
const MOST = 600;
const RATIO = 2;
const AXIS = 24;

const cutsOf = ({ headers, tall }) => {
  const cuts = [0];
  const ends = [...headers.slice(1).map((header) => header.begin), tall];
  ends.forEach((end, place) => {
    if (end - cuts[cuts.length - 1] > MOST && place) cuts.push(ends[place - 1]);
  });
  return [...cuts, tall];
};

const picture = (timeline, first, last) => {
  const { painter } = timeline;
  const [min, max] = timeline.view;
  const width = WIDE - LEFT - 12;
  const canvas = make("canvas", null, { width: WIDE * RATIO, height: (last - first + AXIS) * RATIO });
  const context = canvas.getContext("2d");
  context.scale(RATIO, RATIO);
  context.fillStyle = painter.paint.paper;
  context.fillRect(0, 0, WIDE, last - first + AXIS);
  painter.drawAxis(context, min, max, width);
  context.beginPath();
  context.rect(0, AXIS, WIDE, last - first);
  context.clip();
  painter.draw({ context, left: LEFT, top: AXIS - first, width, min, max }, timeline);
  return canvas;
};

export const printed = (timeline) => {
  timeline.painter.mix(true);
  const cuts = cutsOf(timeline.layout);
  const made = cuts.slice(1).flatMap((last, place) => (last > cuts[place] ? [picture(timeline, cuts[place], last)] : []));
  timeline.painter.mix();
  return made;
};
