/** Buttons, choices and keys of the timeline. */

import { byId, make } from "./dom.mjs";
import { duration, size } from "./numbers.mjs";
import { printed } from "./print.mjs";

const MOST_CHOICES = 500;
const MOST_PIECES = 40;

export class Controls {
  constructor(timeline) {
    this.timeline = timeline;
    this.run = timeline.run;
    this.buttons();
    this.switches();
    this.choices();
    timeline.canvasHost.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("beforeprint", () => byId("timeline-printed").replaceChildren(...printed(timeline)));
    window.addEventListener("afterprint", () => byId("timeline-printed").replaceChildren());
    this.sync();
  }

  buttons() {
    const { timeline } = this;
    const acts = {
      "zoom-in": () => timeline.scaleBy(0.5),
      "zoom-out": () => timeline.scaleBy(2),
      "pan-left": () => timeline.pan(-0.4),
      "pan-right": () => timeline.pan(0.4),
      "zoom-reset": () => { timeline.mark = null; timeline.zoom(...this.run.full); },
      "previous-collective": () => timeline.stepCollective(-1),
      "next-collective": () => timeline.stepCollective(1),
    };
    for (const [id, act] of Object.entries(acts)) byId(id)?.addEventListener("click", act);
  }

  switches() {
    const { timeline } = this;
    const lanes = byId("all-lanes");
    lanes.checked = !timeline.compact;
    lanes.addEventListener("change", () => { timeline.compact = !lanes.checked; timeline.rebuild(); });
    const over = byId("path-over");
    if (!over) return;
    over.checked = timeline.pathOver;
    over.addEventListener("change", () => { timeline.pathOver = over.checked; timeline.redraw(); });
  }

  choices() {
    const { timeline, run } = this;
    this.rank = byId("go-rank");
    for (const { rank } of run.ranks) this.rank.append(make("option", `rank ${rank}`, { value: String(rank) }));
    this.rank.addEventListener("change", () => this.goToRank(Number(this.rank.value)));
    this.step = byId("go-step");
    for (const step of run.stepNumbers) this.step.append(make("option", run.packed.steps[step], { value: String(step) }));
    this.step.disabled = !run.stepNumbers.length;
    this.bucket = byId("go-bucket");
    this.path = byId("go-path");
    const chosen = (select, act) => select.addEventListener("change", () => select.value !== "" && act(Number(select.value)));
    chosen(this.step, (step) => timeline.showStep(step));
    chosen(this.bucket, (row) => timeline.showCollective(row));
    if (!this.path || !run.path) return;
    const { pieces } = run.path;
    const longest = [...pieces.keys()].sort((a, b) => pieces[b].length - pieces[a].length || a - b).slice(0, MOST_PIECES);
    for (const place of longest) {
      this.path.append(make("option", `${duration(pieces[place].length)} ${run.pieceTitle(pieces[place])}`, { value: String(place) }));
    }
    chosen(this.path, (place) => timeline.showPiece(place));
  }

  goToRank(rank) {
    const { timeline } = this;
    timeline.rank = rank;
    timeline.draws(rank);
    timeline.at = undefined;
    timeline.redraw();
    this.sync();
    timeline.reveal();
  }

  /** Let the choices say where the timeline is, and offer what is there. */
  sync() {
    const { timeline, run } = this;
    this.rank.value = String(timeline.rank);
    const rows = run.ofRank.get(timeline.rank) ?? [];
    const wanted = timeline.step === undefined ? undefined : run.packed.steps[timeline.step];
    const key = `${timeline.rank}:${wanted}`;
    if (this.offered === key) return;
    this.offered = key;
    this.bucket.replaceChildren(make("option", run.tables.bucket ? "bucket or collective…" : "collective…", { value: "" }));
    this.bucket.disabled = !rows.length;
    const table = run.tables.collective;
    if (!table) return;
    const step = table.column("step").values;
    rows
      .filter((row) => wanted === undefined || step[row] === wanted)
      .slice(0, MOST_CHOICES)
      .forEach((index, place) => this.bucket.append(make("option", this.title(table.row(index), place + 1, wanted), { value: String(index) })));
  }

  title(row, number, step) {
    const bucket = this.run.bucketOf.get(`${row.rank}:${row.start_ns}`);
    const where = step === undefined && row.step !== null ? `${row.step}: ` : "";
    const which = bucket === undefined ? `${number} ` : `bucket ${bucket}: `;
    return `${where}${which}${row.kind.replaceAll("_", " ")}${row.bytes === null ? "" : ` ${size(row.bytes)}`}`;
  }

  turnRank(by) {
    const { timeline, run } = this;
    const places = run.ranks.map((rank) => rank.rank);
    const place = places.indexOf(timeline.rank) + by;
    if (place < 0 || place >= places.length) return;
    timeline.says.textContent = `rank ${places[place]}`;
    this.goToRank(places[place]);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const { timeline } = this;
    const acts = {
      ArrowLeft: () => timeline.pan(-0.2),
      ArrowRight: () => timeline.pan(0.2),
      ArrowUp: () => this.turnRank(-1),
      ArrowDown: () => this.turnRank(1),
      "+": () => timeline.scaleBy(0.5),
      "=": () => timeline.scaleBy(0.5),
      "-": () => timeline.scaleBy(2),
      0: () => timeline.zoom(...this.run.full),
      Home: () => timeline.zoom(...this.run.full),
      "]": () => timeline.stepStep(1),
      "[": () => timeline.stepStep(-1),
      ".": () => timeline.stepCollective(1),
      ",": () => timeline.stepCollective(-1),
      Escape: () => { timeline.mark = null; timeline.tip.hidden = true; timeline.redraw(); },
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }
}
