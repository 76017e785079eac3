/* The pictures of the playground: maps of what a net answers, what the server averages, curves over the rounds.

   Each function draws what it is given on a canvas, or returns an SVG; colours come from playground.css.            */
const drawing = (() => {
"use strict";

const VIEW = 4.4;           // maps show -VIEW to VIEW in both directions
const GRID = 80;            // places to a side at which a net is asked for its answer
const DASHES = [[], [7, 3], [2, 3]];        // of the clients' lines: A, B, C

const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
const middle = places => [0, 1].map(axis => mean(places.map(place => place[axis])));

/** A pen whose unit is the CSS pixel, the side of the canvas, and its colours. */
function ready(canvas) {
  const side = canvas.clientWidth, ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
  const style = getComputedStyle(canvas), colour = name => style.getPropertyValue(`--${name}`).trim();
  canvas.width = canvas.height = Math.round(side * ratio);
  pen.scale(ratio, ratio);
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  return { pen, side, ink: colour("ink"), ground: colour("ground"), classes: [1, 2, 3].map(c => colour(`class-${c}`)) };
}

/** A mark about (x, y): a disc for client A, a square for B, a triangle for C; filled, with an edge. */
function mark(pen, k, [x, y], r, inside, edge, width) {
  pen.beginPath();
  if (k === 0) pen.arc(x, y, r, 0, 2 * Math.PI);
  if (k === 1) pen.rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r);
  if (k === 2) {
    pen.moveTo(x, y - 1.25 * r);
    pen.lineTo(x + 1.15 * r, y + 0.75 * r);
    pen.lineTo(x - 1.15 * r, y + 0.75 * r);
  }
  pen.closePath();
  pen.fillStyle = inside;
  pen.strokeStyle = edge;
  pen.lineWidth = width;
  pen.fill();
  if (width) pen.stroke();
}

function cross(pen, [x, y], ink) {
  pen.beginPath();
  pen.moveTo(x - 8, y);
  pen.lineTo(x + 8, y);
  pen.moveTo(x, y - 8);
  pen.lineTo(x, y + 8);
  pen.strokeStyle = ink;
  pen.lineWidth = 2;
  pen.stroke();
}

/* ---- Maps ---- */

const known = new WeakMap();        // the same net is drawn more than once

/** Logits and answers of a net at GRID x GRID places, row by row from the top; `key` is what stands for the net. */
function asked(net, key = net) {
  if (!known.has(key)) {
    const at = i => VIEW * (2 * (i + 0.5) / GRID - 1);
    const places = Array.from({ length: GRID ** 2 }, (_, i) => [at(i % GRID), -at(Math.floor(i / GRID))]);
    const { logits } = federation.forward(net, places);
    known.set(key, { logits, answers: logits.map(federation.highest) });
  }
  return known.get(key);
}

/** Colour each place of the grid by its answer. */
function fill(pen, side, { answers }, colours) {
  const image = new ImageData(GRID, GRID), small = document.createElement("canvas");
  const rgb = colours.map(hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)));
  answers.forEach((c, i) => image.data.set([...rgb[c], 75], 4 * i));
  small.width = small.height = GRID;
  small.getContext("2d").putImageData(image, 0, 0);
  pen.drawImage(small, 0, 0, side, side);
}

/** Draw where the answer changes. Between neighbours that answer p and q it does where the logits of p and q are equal;
    such places about a square of four neighbours are joined in their middle. */
function outline(pen, side, { logits, answers }) {
  const crossing = (a, b) => {
    const [here, there] = [a, b].map(([i, j]) => j * GRID + i), p = answers[here], q = answers[there];
    if (p === q) return [];
    const lead = logits[here][p] - logits[here][q], lag = logits[there][q] - logits[there][p];
    const way = lead / (lead + lag || 1);
    return [a.map((v, axis) => side * (v + way * (b[axis] - v) + 0.5) / GRID)];
  };
  pen.beginPath();
  for (let j = 0; j < GRID - 1; j++) for (let i = 0; i < GRID - 1; i++) {
    const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
    const places = corners.flatMap((corner, n) => crossing(corner, corners[(n + 1) % 4]));
    for (const place of places) {
      pen.moveTo(...place);
      pen.lineTo(...middle(places));
    }
  }
  pen.stroke();
}

/** A map: one net's answers as tint, another's as outline (see `asked`), and points of some clients:
    {k, x, y, answers?}. A point whose answer is wrong is hollow. */
function map(canvas, { tint, line, clients, size }) {
  const { pen, side, ink, ground, classes } = ready(canvas);
  const to = ([x, y]) => [side * (1 + x / VIEW) / 2, side * (1 - y / VIEW) / 2];
  if (tint) fill(pen, side, tint, classes);
  pen.strokeStyle = ink;
  pen.lineWidth = 1.5;
  if (line) outline(pen, side, line);
  for (const { k, x, y, answers = y } of clients) {
    x.forEach((row, n) => {
      const colour = classes[y[n]];
      if (answers[n] === y[n]) mark(pen, k, to(row), size, colour, ground, 0.8);
      else mark(pen, k, to(row), size, ground, colour, 2);
    });
  }
  pen.font = `bold ${Math.round(10 + side / 90)}px sans-serif`;
  pen.fillStyle = ink;
  pen.strokeStyle = ground;
  pen.lineWidth = 3;
  for (const { x, y } of clients) classes.forEach((_, c) => {
    const place = to(middle(x.filter((_, n) => y[n] === c)));
    pen.strokeText(c + 1, ...place);
    pen.fillText(c + 1, ...place);
  });
}

/* ---- What the server averages ---- */

/** From numbers between -reach and reach to places on a canvas. */
const centred = (side, reach) => ([x, y]) => [side / 2 * (1 + x / reach), side / 2 * (1 - y / reach)];

/** The clients' ways through the plane of their nets, from the ring to their marks; the cross is the average. */
function moves(canvas, { paths }, names, reach) {
  const { pen, side, ink, ground } = ready(canvas), to = centred(side, 1.25 * reach), centre = to([0, 0]);
  pen.font = "bold 13px sans-serif";
  paths.forEach((path, k) => {
    pen.beginPath();
    path.forEach(at => pen.lineTo(...to(at)));
    pen.strokeStyle = ink;
    pen.lineWidth = 1.5;
    pen.setLineDash(DASHES[k]);
    pen.stroke();
    pen.setLineDash([]);
    const end = to(path.at(-1)), away = end.map((v, axis) => v - centre[axis]), far = Math.hypot(...away) || 1;
    mark(pen, k, end, 5, ink, ink, 0);
    pen.fillText(names[k], ...end.map((v, axis) => v + 15 * away[axis] / far));
  });
  mark(pen, 0, to(paths[0][0]), 5, ground, ink, 2);
  cross(pen, centre, ink);
}

/** Features of the clients' points, each client's mean of a class (large), and the means of those (crosses). */
function prototypes(canvas, clients, means) {
  const { pen, side, ink, ground, classes } = ready(canvas);
  const to = centred(side, 1.1 * Math.max(...clients.flatMap(client => client.z).flat().map(Math.abs)));
  pen.globalAlpha = 0.35;
  clients.forEach(({ z, y }, k) => z.forEach((row, n) => mark(pen, k, to(row), 2, classes[y[n]], ground, 0)));
  pen.globalAlpha = 1;
  clients.forEach(({ own }, k) => own.forEach((p, c) => mark(pen, k, to(p), 6, classes[c], ground, 1.5)));
  means.forEach(p => cross(pen, to(p), ink));
}

const blank = canvas => { ready(canvas); };

/* ---- Curves ---- */

/** A round number that is at least the value: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(step => step * power).find(round => round >= 0.999 * value);
}

/** An SVG of three curves, one for each client, and faintly a fourth: rows [[x, [A, B, C]], ...], faint [[x, y], ...].
    top: of the scale, or else a round number above the values; ticks: parts of it. */
function curves(rows, faint, names, { title, unit, end, top, ticks = [0, 0.5, 1] }) {
  const width = 300, height = 190, left = 32, right = 24, low = 24, high = 8;
  const most = top ?? ceiling(Math.max(0.1, ...rows.flatMap(row => row[1]), ...faint.map(row => row[1])));
  const x = v => (left + (width - left - right) * v / end).toFixed(1);
  const y = v => +(height - low - (height - low - high) * v / most).toFixed(1);
  const line = (points, how) => `<polyline ${how} points="${points.map(([at, v]) => `${x(at)},${y(v)}`).join(" ")}"/>`;
  const grid = ticks.map(part => part * most).map(v => `<path d="M${left},${y(v)}H${width - right}"/>
    <text x="${left - 5}" y="${y(v) + 4}" text-anchor="end">${+v.toPrecision(2)}</text>`);
  const own = names.map((_, k) => line(rows.map(([at, values]) => [at, values[k]]), `stroke-dasharray="${DASHES[k]}"`));
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${title}"><title>${title}</title>
    <g class="axis">${grid.join("")}<text x="${left}" y="${height - 7}">0</text>
    <text x="${width - right}" y="${height - 7}" text-anchor="end">${end} ${unit}</text></g>
    ${line(faint, 'class="before"')}${own.join("")}
    ${rows.length ? labels(rows.at(-1), names, x, y, height - low) : ""}</svg>`;
}

/** The names at the ends of the curves, one below the other where the ends are close. */
function labels([at, values], names, x, y, lowest) {
  const apart = 13, ends = values.map((v, k) => ({ name: names[k], y: y(v) })).sort((a, b) => a.y - b.y);
  for (let i = 1; i < ends.length; i++) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + apart);
  const over = Math.max(0, ends.at(-1).y - lowest);
  return ends.map(end => `<text class="end" x="${+x(at) + 5}" y="${end.y - over + 4}">${end.name}</text>`).join("");
}

return { VIEW, asked, map, moves, prototypes, blank, curves };
})();
