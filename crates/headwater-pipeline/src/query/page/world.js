// The canvas: a slice of the world that zooms and pans. Two axes are shown, the others are fixed; a world of one dimension is a strip.

/** Slices of up to so many cells are loaded whole; of larger ones the visible part. */
const WHOLE_CELLS = 4_000_000;
const PART_EDGE = 2_000;
/** How many rows a strip is high. */
const STRIP_ROWS = 12;
const SCALE_MAX = 64;

class WorldView {
  constructor(canvas, events) {
    this.canvas = canvas;
    this.events = events;
    this.sizes = [];
    this.colourBy = 'type';
    this.highlight = null;
    this.organisms = [];
    this.selected = null;
    this.view = { x: 0, y: 0, scale: 1 };
    /** Until the user zooms or pans. */
    this.isWhole = true;
    this.picture = document.createElement('canvas');
    this.listen();
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.paint());
  }

  /** A new world. The last axis runs to the right, the one before it down. */
  shape(sizes) {
    this.sizes = sizes;
    this.strides = sizes.map((_, axis) => sizes.slice(axis + 1).reduce((product, size) => product * size, 1));
    this.across = sizes.length - 1;
    this.down = sizes.length > 1 ? sizes.length - 2 : null;
    this.fixed = sizes.map(() => 0);
    this.cells = null;
    this.fit();
  }

  get columns() { return this.sizes.length ? this.sizes[this.across] : 0; }
  get rows() { return this.down === null ? 1 : this.sizes[this.down]; }
  /** The height of a row in units of a cell's width. */
  get stretch() { return this.down === null ? Math.max(1, Math.min(STRIP_ROWS, this.columns / 4)) : 1; }

  /** The part to load: inclusive bounds of columns and rows. */
  part() {
    const whole = { left: 0, right: this.columns - 1, top: 0, bottom: this.rows - 1 };
    if (this.columns * this.rows <= WHOLE_CELLS) return whole;
    const { x, y, scale } = this.view;
    // What is visible, or as much around its middle as may be loaded.
    const span = (from, pixels, last) => {
      const cells = pixels / scale;
      const begin = from + Math.max(0, cells - PART_EDGE) / 2;
      const clamp = (value) => Math.max(0, Math.min(last, Math.floor(value)));
      return [clamp(begin), clamp(begin + Math.min(cells, PART_EDGE - 1))];
    };
    const [left, right] = span(x, this.canvas.width, whole.right);
    const [top, bottom] = span(y, this.canvas.height / this.stretch, whole.bottom);
    return { left, right, top, bottom };
  }

  /** Whether some of what is visible is not in a part. */
  isPart(part) {
    const { x, y, scale } = this.view;
    const right = Math.min(this.columns - 1, x + this.canvas.width / scale - 1);
    const bottom = Math.min(this.rows - 1, y + this.canvas.height / (scale * this.stretch) - 1);
    return part.left > Math.max(0, x) || part.top > Math.max(0, y) || part.right < Math.floor(right) || part.bottom < Math.floor(bottom);
  }

  /** The parameter `region` of a part. */
  region(part) {
    return this.sizes.map((_, axis) => {
      if (axis === this.across) return `${part.left}..${part.right}`;
      if (axis === this.down) return `${part.top}..${part.bottom}`;
      return String(this.fixed[axis]);
    }).join(',');
  }

  /** Whether a part that was loaded has everything that is visible now. */
  covers(part) {
    const wanted = this.part();
    return part.left <= wanted.left && part.right >= wanted.right && part.top <= wanted.top && part.bottom >= wanted.bottom;
  }

  show(cells, part) {
    this.cells = cells;
    this.loaded = part;
    this.width = part.right - part.left + 1;
    this.height = part.bottom - part.top + 1;
    // Per place the number of its cell, from 1 on.
    this.places = new Int32Array(this.width * this.height);
    cells.flat_index.forEach((flat, at) => {
      const row = this.down === null ? 0 : Math.floor(flat / this.strides[this.down]) % this.rows;
      const column = Math.floor(flat / this.strides[this.across]) % this.columns;
      this.places[(row - part.top) * this.width + column - part.left] = at + 1;
    });
    this.paint();
  }

  clear() {
    this.cells = null;
    this.organisms = [];
    this.draw();
  }

  /** The key of a cell by which it is coloured. */
  keyOf(at) {
    return this.colourBy === 'type' ? this.cells.molecule_type[at] : this.cells.owner_id[at];
  }

  colourOf(key) {
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    // No type and no owner are grey.
    if (key === 0) return rgb(0, 0, dark ? 0.42 : 0.68);
    const band = key <= HUES.length ? 1 : Math.floor(key / 12) % 3;
    return rgb(hueOf(key), dark ? 0.58 : 0.62, (dark ? 0.6 : 0.5) + (band - 1) * 0.1);
  }

  /** How many cells each key has, most first. */
  counts() {
    const counts = new Map();
    for (let at = 0; this.cells && at < this.cells.flat_index.length; at++) {
      const key = this.keyOf(at);
      counts.set(key, (counts.get(key) || 0) + 1);
    }
    return [...counts].sort((a, b) => b[1] - a[1]);
  }

  /** Colours the loaded part, one point per cell. */
  paint() {
    if (!this.cells) return this.draw();
    const { picture, width, height, places } = this;
    if (picture.width !== width || picture.height !== height) [picture.width, picture.height] = [width, height];
    const context = picture.getContext('2d');
    const image = context.createImageData(width, height);
    const points = new Uint32Array(image.data.buffer);
    const colours = new Map();
    for (let place = 0; place < places.length; place++) {
      if (!places[place]) continue;
      const key = this.keyOf(places[place] - 1);
      let colour = colours.get(key);
      if (colour === undefined) {
        const [red, green, blue] = this.colourOf(key);
        const alpha = this.highlight === null || this.highlight === key ? 255 : 40;
        // Bytes in memory are red, green, blue, alpha on every machine that a browser runs on.
        colour = ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
        colours.set(key, colour);
      }
      points[place] = colour;
    }
    context.putImageData(image, 0, 0);
    this.draw();
  }

  draw() {
    const { canvas, view, stretch } = this;
    const context = canvas.getContext('2d');
    const style = getComputedStyle(document.documentElement);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!this.sizes.length) return;
    const x = (column) => (column - view.x) * view.scale;
    const y = (row) => (row - view.y) * view.scale * stretch;
    context.fillStyle = style.getPropertyValue('--panel');
    context.fillRect(x(0), y(0), this.columns * view.scale, this.rows * view.scale * stretch);
    if (this.cells) {
      context.imageSmoothingEnabled = view.scale < 1;
      const { left, top } = this.loaded;
      context.drawImage(this.picture, x(left), y(top), this.width * view.scale, this.height * view.scale * stretch);
    }
    if (view.scale >= 12) this.grid(context, x, y, style.getPropertyValue('--line'));
    this.markers(context, x, y, style);
    context.strokeStyle = style.getPropertyValue('--line');
    context.strokeRect(x(0) - 0.5, y(0) - 0.5, this.columns * view.scale + 1, this.rows * view.scale * stretch + 1);
  }

  grid(context, x, y, colour) {
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.beginPath();
    for (let column = Math.max(0, Math.floor(this.view.x)); column <= this.columns && x(column) < this.canvas.width; column++) {
      context.moveTo(x(column), y(0));
      context.lineTo(x(column), y(this.rows));
    }
    for (let row = Math.max(0, Math.floor(this.view.y)); row <= this.rows && y(row) < this.canvas.height; row++) {
      context.moveTo(x(0), y(row));
      context.lineTo(x(this.columns), y(row));
    }
    context.stroke();
  }

  /** Organisms of this slice as rings; the selected one is larger. */
  markers(context, x, y, style) {
    const radius = Math.max(2, this.view.scale * 0.6);
    for (const organism of this.organisms) {
      const position = organism.position;
      const isHere = position.every((value, axis) => axis === this.across || axis === this.down || value === this.fixed[axis]);
      if (!organism.alive || !isHere) continue;
      const isSelected = organism.id === this.selected;
      const centre = [x(position[this.across] + 0.5), y((this.down === null ? 0 : position[this.down]) + 0.5)];
      context.beginPath();
      context.arc(...centre, isSelected ? radius + 6 : radius, 0, 2 * Math.PI);
      context.strokeStyle = style.getPropertyValue(isSelected ? '--accent' : '--ink');
      context.lineWidth = isSelected ? 3 : 1;
      context.stroke();
    }
    context.lineWidth = 1;
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    this.canvas.width = Math.max(1, Math.round(clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(clientHeight * ratio));
    // A world that is shown whole stays so in a window of another size; a part that was chosen stays where it is.
    if (this.isWhole) this.fit(); else this.moved();
  }

  fit() {
    if (!this.sizes.length) return this.draw();
    const { width, height } = this.canvas;
    const scale = Math.min(width / this.columns, height / (this.rows * this.stretch)) * 0.96;
    this.view.scale = Math.min(SCALE_MAX, scale);
    this.view.x = (this.columns - width / this.view.scale) / 2;
    this.view.y = (this.rows - height / (this.view.scale * this.stretch)) / 2;
    this.isWhole = true;
    this.moved();
  }

  zoom(factor, centre = [this.canvas.width / 2, this.canvas.height / 2]) {
    const { view, stretch } = this;
    const least = Math.min(this.canvas.width / this.columns, this.canvas.height / (this.rows * stretch)) / 4;
    const scale = Math.max(least, Math.min(SCALE_MAX, view.scale * factor));
    // The cell below the pointer stays there.
    view.x += centre[0] / view.scale - centre[0] / scale;
    view.y += (centre[1] / view.scale - centre[1] / scale) / stretch;
    view.scale = scale;
    this.isWhole = false;
    this.moved();
  }

  moved() {
    this.draw();
    if (this.loaded && this.cells && !this.covers(this.loaded)) this.events.uncovered();
  }

  /** The place below a pointer; `null` outside the world. */
  placeAt(event) {
    const ratio = devicePixelRatio || 1;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) * ratio / this.view.scale + this.view.x);
    const row = Math.floor((event.clientY - box.top) * ratio / (this.view.scale * this.stretch) + this.view.y);
    if (column < 0 || row < 0 || column >= this.columns || row >= this.rows) return null;
    const coordinates = this.fixed.slice();
    coordinates[this.across] = column;
    if (this.down !== null) coordinates[this.down] = row;
    let at = -1;
    if (this.cells && column >= this.loaded.left && column <= this.loaded.right && row >= this.loaded.top && row <= this.loaded.bottom) {
      at = this.places[(row - this.loaded.top) * this.width + column - this.loaded.left] - 1;
    }
    return { coordinates, at };
  }

  listen() {
    const { canvas } = this;
    let pointers = new Map(), travelled = 0;
    const ratio = () => devicePixelRatio || 1;
    canvas.addEventListener('pointerdown', (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
      travelled = 0;
      canvas.classList.add('dragged');
    });
    canvas.addEventListener('pointermove', (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return this.events.hover(this.placeAt(event), event);
      const spread = () => { const [a, b] = [...pointers.values()]; return b ? Math.hypot(a[0] - b[0], a[1] - b[1]) : 0; };
      const was = spread();
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
      const [dx, dy] = [event.clientX - before[0], event.clientY - before[1]];
      travelled += Math.abs(dx) + Math.abs(dy);
      this.view.x -= dx * ratio() / this.view.scale / pointers.size;
      this.view.y -= dy * ratio() / (this.view.scale * this.stretch) / pointers.size;
      if (travelled >= 4) this.isWhole = false;
      if (was && spread()) this.zoom(spread() / was); else this.moved();
    });
    const released = (event) => {
      if (pointers.delete(event.pointerId) && travelled < 4 && event.type === 'pointerup') this.events.click(this.placeAt(event));
      if (!pointers.size) canvas.classList.remove('dragged');
    };
    canvas.addEventListener('pointerup', released);
    canvas.addEventListener('pointercancel', released);
    canvas.addEventListener('pointerleave', (event) => this.events.hover(null, event));
    canvas.addEventListener('wheel', (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 300), [(event.clientX - box.left) * ratio(), (event.clientY - box.top) * ratio()]);
    }, { passive: false });
  }
}
