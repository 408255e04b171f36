/** Numbers as people read them. */

export const grouped = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const duration = (ns) => {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (Math.abs(ns) >= size) {
      const value = ns / size;
      return `${Number(value.toPrecision(Math.abs(value) >= 100 ? Math.ceil(Math.log10(Math.abs(value) + 1)) : 3)).toLocaleString("en-US")} ${unit}`;
    }
  }
  return `${Math.round(ns)} ns`;
};
export const size = (bytes) => {
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= scale) return `${Number((bytes / scale).toPrecision(4))} ${unit}`;
  }
  return `${bytes} B`;
};
export const shown = {
  ns: (value) => grouped(value / 1e6, 3),
  bytes: size,
  float: (value) => Number(value.toPrecision(4)).toLocaleString("en-US"),
  int: (value) => String(value),
  flag: (value) => (value ? "yes" : "no"),
  text: (value) => value,
};
