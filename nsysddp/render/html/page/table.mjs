/** A table that sorts, filters and turns pages. */

import { make } from "./dom.mjs";
import { grouped, shown } from "./numbers.mjs";

const PAGE = 25;

export class DataTable {
  constructor(host, data, showInTimeline) {
    this.host = host;
    this.data = data;
    this.showInTimeline = showInTimeline;
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
        button.addEventListener("click", () => this.showInTimeline(row));
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
