/** Where the page's program begins: its tables, its timeline, and the links between them. */

import { byId, read } from "./dom.mjs";
import { HeatMap } from "./heat.mjs";
import { Run } from "./run.mjs";
import { DataTable } from "./table.mjs";
import { offerThemes } from "./theme.mjs";
import { Timeline } from "./timeline.mjs";

const tables = {};
let timeline = null;

const goToRows = ({ table, ...facets }) => {
  tables[table].filter(facets);
  const section = tables[table].host.closest("section");
  section.scrollIntoView();
  section.querySelector(".scroll").focus({ preventScroll: true });
};

const goToPlace = (place, title) => {
  byId("timeline").scrollIntoView();
  if (place.collective !== undefined) {
    timeline.showCollective(place.collective);
    tables.collective.filter({});
    tables.collective.mark(place.collective);
  } else if (place.step !== undefined) timeline.showStep(place.step, place.rank);
  else timeline.show({ rank: place.rank, from: place.from, to: place.to, lane: place.lane, title, air: place.air ?? 0.1 });
  timeline.canvasHost.focus({ preventScroll: true });
};

const follow = (event) => {
  const link = event.target.closest("[data-place], [data-rows]");
  if (!link) return;
  const rows = link.dataset.rows && JSON.parse(link.dataset.rows);
  if (rows ? !tables[rows.table] : !timeline) return;
  event.preventDefault();
  if (rows) goToRows(rows);
  else goToPlace(JSON.parse(link.dataset.place), link.dataset.title ?? link.textContent);
};

offerThemes();
for (const host of document.querySelectorAll("[data-table]")) {
  const name = host.dataset.table;
  tables[name] = new DataTable(host, read(`table-${name}`), (row) => timeline && timeline.showRow(name, row));
}
if (byId("timeline-plot")) {
  const run = new Run(read("timeline-data"), tables, byId("timeline-columns").textContent);
  timeline = new Timeline(byId("timeline"), run, read("timeline-looks"));
}
for (const name of ["heat", "pairs"]) {
  if (byId(`${name}-map`)) new HeatMap(name, read(`${name}-data`), (place) => timeline && place.step !== null && goToPlace(place, ""));
}
document.addEventListener("click", follow);
document.documentElement.dataset.ready = "yes";
