/** What render/html/packed.py packed: columns of numbers, sets of instants, events. */

const unpack = (text) => {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place += 1) bytes[place] = raw.charCodeAt(place);
  return bytes;
};

export class Columns {
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
export const after = (array, value) => {
  let [low, high] = [0, array.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
};

/** A set of instants: pieces, and how much time is covered before each. */
export class Pieces {
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
export class Boxes {
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
