/* The page of the playground: it keeps a state of `federation`, draws it, and hands on what the reader asks for. */
(() => {
"use strict";

const root = document.getElementById("playground");
const find = selector => root.querySelector(selector);
const { METHODS, DOMAINS, CLASSES } = federation;

const VIEW = 4.4, REACH = 3.3;          // the maps show -VIEW to VIEW; a centre may be dragged so far from the middle
const GRID = 80;                        // places to a side at which a net is asked for its answer
const LONGEST = 400;                    // rounds that Play goes on for
const SLIDERS = {                       // a setting's name, the values it may have, and for which method
  shift: { text: "shift of the domains", values: range(0, 2.5, 0.1) },
  turn: { text: "turn of B and C", values: range(0, 90, 5), unit: "°" },
  steps: { text: "local steps in a round", values: [1, 2, 5, 10, 20, 50] },
  lr: { text: "learning rate", values: [0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1, 3] },
  mu: { text: "μ, strength of the rope", values: [0, 0.03, 0.1, 0.3, 1, 3, 5, 10], method: "FedProx" },
  lam: { text: "λ, pull of the prototypes", values: [0, 0.03, 0.1, 0.3, 1, 3], method: "FedProto" },
  seed: { text: "seed", values: range(0, 9, 1) },
};
const MOVES_DATA = ["shift", "turn"], BEGINS_ANEW = ["method", "norm", "seed"];

let state, history, before = null;      // the federation; what its rounds measured; the same of the run before
let fallen = false;                     // has it diverged? Then `state` is the last that had not
let timer = null, until = 0;            // Play: its clock, and the round at which it stops

function range(from, to, step) {
  return Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => +(from + i * step).toFixed(2));
}

/* ---- What happens ---- */

/** A new run with these settings, the domains where they are or where the shift puts them. */
function begin(settings, places) {
  pause();
  if (history && history.length > 1) before = history;
  state = federation.begin(settings, places);
  history = [measured(state, 0)];
  fallen = false;
}

/** One round, if it can be played. */
function advance() {
  if (fallen) return;
  const next = federation.play(state);
  fallen = federation.diverged(next);
  if (fallen) return pause();
  state = next;
  history.push(measured(state, history.at(-1).steps + state.settings.steps));
}

/** A row of the curves. */
function measured({ clients, ...all }, steps) {
  const moves = federation.drift({ clients, ...all });
  const far = moves ? moves.far : all.protos ? clients.map(client => apart(client.protos, all.protos)) : null;
  return { steps, acc: clients.map(client => client.acc), far, of: all.protos ? "prototypes" : "nets" };
}

/** The mean distance of two lists of points. */
function apart(some, others) {
  return mean(some.map((p, i) => Math.hypot(p[0] - others[i][0], p[1] - others[i][1])));
}

const mean = values => values.reduce((a, b) => a + b, 0) / values.length;

/** Play on until a round; the clock waits until a round is drawn. */
function playUntil(round) {
  until = round;
  const tick = () => {
    const start = performance.now();
    advance();
    if (state.round >= until) pause();
    show();
    if (timer) timer = setTimeout(tick, Math.max(10, (state.settings.steps === 1 ? 50 : 150) - (performance.now() - start)));
  };
  timer = setTimeout(tick, 0);
}

function pause() {
  clearTimeout(timer);
  timer = null;
}

/** A setting was changed: the data follow at once, the rest counts from the next round, some begin a new run. */
function change(name, value) {
  const settings = { ...state.settings, [name]: value };
  const places = state.clients.map(client => client.centre);
  if (BEGINS_ANEW.includes(name)) begin(settings, places);
  else if (MOVES_DATA.includes(name)) {
    state = federation.moved({ ...state, settings }, name === "shift" ? undefined : places);
  } else state = { ...state, settings };
  if (fallen) begin(settings, places);
  show();
}

/** The centre of domain k goes to this place. */
function place(k, centre) {
  const within = v => Math.max(-REACH, Math.min(REACH, v));
  const places = state.clients.map((client, i) => i === k ? centre.map(within) : client.centre);
  if (fallen) begin(state.settings, places);
  else state = federation.moved(state, places);
  show(`${DOMAINS[k].name} moved. ${nets().one ? "The net" : "Its net"} is right on ${percent(state.clients[k].acc)} of its `
       + `test points now.`);
}

/* ---- What is said ---- */

const percent = value => `${Math.round(value)} %`;
const list = texts => `${texts.slice(0, -1).join(", ")} and ${texts.at(-1)}`;
const each = name => list(state.clients.map(client => Math.round(client[name]))) + " %";
const short = value => value >= 100 ? value.toExponential(0) : value.toFixed(2);

/** Is there one net for all clients, and does anything of a net travel? */
function nets() {
  const { personal } = METHODS[state.settings.method], shared = Object.keys(state.server).length;
  return { one: !personal, travel: shared > 0 };
}

/** What happened in the last round, in a sentence or three. */
function sentence() {
  const { round, settings, clients } = state, { method, norm, steps, lr, mu } = settings;
  if (fallen) {
    return `Diverged in round ${round + 1}: the loss left all bounds. ` + (method === "FedProx" && lr * mu > 2
      ? `Rate times μ is ${+(lr * mu).toFixed(2)}; above 2 every step on the rope jumps further to the other side.`
      : "A lower rate, fewer steps or a weaker pull may hold it.") + " Start again.";
  }
  if (!round) {
    return `Before the first round: all clients hold the same new net, which is right on ${each("acc")} of their points. `
      + "Guessing gives 33 %." + (method === "FedBN" && !norm ? " Without a norm layer FedBN is FedAvg." : "");
  }
  const home = `Round ${round}: after ${steps} local step${steps === 1 ? "" : "s"} the clients are right on ${each("after")} at home. `;
  const row = history.at(-1), moves = federation.drift(state);
  if (moves) {
    return home + `Their nets ended ${short(mean(row.far))} from the average, and ${percent(100 * moves.cancels)} of their moves `
      + `cancelled. ` + (nets().one ? `The average is right on ${each("acc")}.`
        : `${norm ? "With its own norm layer in the average" : "Without a norm layer this is FedAvg, and"} each client is right `
          + `on ${each("acc")}.`);
  }
  if (state.protos) {
    return home + `Only prototypes travelled: those of a class lie ${short(mean(row.far))} from their mean, and two classes `
      + `${short(apart(state.protos, [1, 2, 0].map(c => state.protos[c])))} from each other.`;
  }
  return home + "Nothing travelled.";
}

/* ---- Drawing: maps ---- */

const colour = name => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

/** A pen for a canvas whose unit is the CSS pixel, and the canvas's side. */
function ready(canvas) {
  const side = canvas.clientWidth, ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
  canvas.width = canvas.height = Math.round(side * ratio);
  pen.scale(ratio, ratio);
  return { pen, side };
}

/** A mark of client k about (x, y): a disc, a square or a triangle. */
function mark(pen, k, x, y, r) {
  pen.beginPath();
  if (k === 0) pen.arc(x, y, r, 0, 7);
  if (k === 1) pen.rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r);
  if (k === 2) { pen.moveTo(x, y - 1.25 * r); pen.lineTo(x + 1.15 * r, y + 0.75 * r); pen.lineTo(x - 1.15 * r, y + 0.75 * r); }
  pen.closePath();
}

const known = new WeakMap();            // what nets answer on the grid: the same net is drawn more than once

/** Logits and answers of a net at GRID x GRID places, row by row from the top; `key` is what stands for the net. */
function asked(net, key) {
  if (!known.has(key)) {
    const at = i => VIEW * (2 * (i + 0.5) / GRID - 1);
    const places = Array.from({ length: GRID ** 2 }, (_, i) => [at(i % GRID), -at(Math.floor(i / GRID))]);
    const { logits } = federation.forward(net, places);
    known.set(key, { logits, answers: logits.map(row => row.indexOf(Math.max(...row))) });
  }
  return known.get(key);
}

/** Colour each place of the grid by its answer. */
function fill(pen, side, { answers }, colours) {
  const image = new ImageData(GRID, GRID), small = document.createElement("canvas");
  answers.forEach((c, i) => image.data.set([...colours[c], 75], 4 * i));
  small.width = small.height = GRID;
  small.getContext("2d").putImageData(image, 0, 0);
  pen.drawImage(small, 0, 0, side, side);
}

/** Draw where the answer changes. Between neighbours that answer p and q that is where the logits of p and q are equal;
    of four neighbours two such points make a line, more of them meet in the middle. */
function outline(pen, side, { logits, answers }) {
  const to = v => side * (v + 0.5) / GRID;
  pen.beginPath();
  for (let j = 0; j < GRID - 1; j++) for (let i = 0; i < GRID - 1; i++) {
    const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
    const points = corners.flatMap((a, n) => {
      const b = corners[(n + 1) % 4], [at, next] = [a, b].map(([x, y]) => y * GRID + x);
      const p = answers[at], q = answers[next], lead = logits[at][p] - logits[at][q], lag = logits[next][q] - logits[next][p];
      const t = lead / (lead + lag || 1);
      return p === q ? [] : [a.map((v, axis) => to(v + t * (b[axis] - v)))];
    });
    const middle = points.length > 2 ? [0, 1].map(axis => mean(points.map(point => point[axis]))) : points[1];
    for (const point of points.length > 2 ? points : points.slice(0, 1)) {
      pen.moveTo(...point);
      pen.lineTo(...middle);
    }
  }
  pen.stroke();
}

const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));

/** A map: one net's answers as tint, another's as outline, and the points of some clients. */
function drawMap(canvas, { tint, line, clients, points, size }) {
  const { pen, side } = ready(canvas), to = ([x, y]) => [side * (x / VIEW + 1) / 2, side * (1 - y / VIEW) / 2];
  const classes = [1, 2, 3].map(c => colour(`class-${c}`)), ink = colour("ink"), ground = colour("ground");
  pen.strokeStyle = ink;
  pen.lineWidth = 1.5;
  if (tint) fill(pen, side, tint, classes.map(rgb));
  if (line) outline(pen, side, line);
  for (const k of clients) {
    const { x, y } = state.clients[k][points], right = points === "test" && federation.answers(state.clients[k].net, x);
    x.forEach((row, n) => {
      const wrong = right && right[n] !== y[n];
      mark(pen, k, ...to(row), size);
      pen.fillStyle = wrong ? ground : classes[y[n]];
      pen.strokeStyle = wrong ? classes[y[n]] : ground;
      pen.lineWidth = wrong ? 2 : 0.8;
      pen.fill();
      pen.stroke();
    });
  }
  pen.font = `bold ${Math.round(10 + side / 90)}px sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.lineWidth = 3;
  for (const k of clients) for (let c = 0; c < CLASSES; c++) {
    const { x, y } = state.clients[k].train, own = x.filter((_, n) => y[n] === c);
    const [left, top] = to([0, 1].map(i => mean(own.map(row => row[i]))));
    pen.strokeStyle = ground;
    pen.fillStyle = ink;
    pen.strokeText(c + 1, left, top);
    pen.fillText(c + 1, left, top);
  }
}

/** What the server averages: the clients' ways to their ends, or their prototypes. Returns what can be said of it. */
function drawMix(canvas) {
  const { pen, side } = ready(canvas), ink = colour("ink"), moves = federation.drift(state);
  const view = size => ([x, y]) => [side / 2 * (1 + x / size), side / 2 * (1 - y / size)];
  const cross = (x, y) => {
    pen.beginPath();
    pen.moveTo(x - 8, y); pen.lineTo(x + 8, y); pen.moveTo(x, y - 8); pen.lineTo(x, y + 8);
    pen.lineWidth = 2;
    pen.strokeStyle = ink;
    pen.stroke();
  };
  pen.strokeStyle = pen.fillStyle = ink;
  if (moves) {
    const to = view(1.25 * Math.max(0.05, ...history.flatMap(row => row.far ?? [])));    // one scale for the whole run
    moves.paths.forEach((path, k) => {
      pen.beginPath();
      path.forEach(at => pen.lineTo(...to(at)));
      pen.lineWidth = 1.5;
      pen.setLineDash(DASHES[k]);
      pen.stroke();
      pen.setLineDash([]);
      const [x, y] = to(path.at(-1)), out = Math.hypot(x - side / 2, y - side / 2) || 1;
      mark(pen, k, x, y, 5);
      pen.fill();
      pen.font = "bold 13px sans-serif";
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText(DOMAINS[k].name, x + 15 * (x - side / 2) / out, y + 15 * (y - side / 2) / out);
    });
    const [x, y] = to(moves.paths[0][0]);
    pen.beginPath();
    pen.arc(x, y, 5, 0, 7);
    pen.fillStyle = colour("ground");
    pen.fill();
    pen.lineWidth = 2;
    pen.stroke();
    cross(...to([0, 0]));
    return `The plane of the three nets: ${short(mean(moves.far))} from their average (✚); ○ is what the server sent.`;
  }
  if (state.protos) {
    const z = state.clients.map(client => federation.forward(client.net, client.train.x).z);
    const to = view(1.1 * Math.max(...z.flat(2).map(Math.abs)));
    z.forEach((rows, k) => rows.forEach((row, n) => {
      mark(pen, k, ...to(row), 2);
      pen.globalAlpha = 0.35;
      pen.fillStyle = colour(`class-${state.clients[k].train.y[n] + 1}`);
      pen.fill();
    }));
    pen.globalAlpha = 1;
    state.clients.forEach((client, k) => client.protos.forEach((p, c) => {
      mark(pen, k, ...to(p), 6);
      pen.fillStyle = colour(`class-${c + 1}`);
      pen.strokeStyle = colour("ground");
      pen.lineWidth = 1.5;
      pen.fill();
      pen.stroke();
    }));
    state.protos.forEach(p => cross(...to(p)));
    return "Features, and each client's mean of a class (large); ✚ is the mean of the clients.";
  }
  return state.round ? "Nothing travels: nothing is averaged." : "What is averaged shows after a round.";
}

/* ---- Drawing: curves ---- */

const DASHES = [[], [7, 3], [2, 3]];    // of the clients A, B, C

/** The rows of the run before that can be drawn with those of this one. */
function earlier(name) {
  return (before ?? []).filter(row => row[name] && row.steps <= longest() && (name === "acc" || row.of === history.at(-1).of));
}

const longest = () => Math.max(50, history.at(-1).steps);

/** Curves of the clients over local steps as an SVG; `top` is the highest value. */
function curves(name, top, ticks, title) {
  const width = 300, height = 190, left = 30, right = 24, low = 24;
  const x = steps => left + (width - left - right) * steps / longest();
  const y = value => height - low - (height - low - 8) * Math.min(1, value / top);
  const line = rows => rows.map(([steps, value]) => `${x(steps).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const rows = history.filter(row => row[name]), old = earlier(name);
  const ends = rows.length ? rows.at(-1)[name].map((value, k) => ({ k, at: y(value) })).sort((a, b) => a.at - b.at) : [];
  ends.forEach((end, i) => { if (i) end.at = Math.max(end.at, ends[i - 1].at + 13); });
  const over = Math.max(0, (ends.at(-1)?.at ?? 0) - (height - low));
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${title}"><title>${title}</title>
    <g class="axis">${ticks.map(v => `<line x1="${left}" x2="${width - right}" y1="${y(v)}" y2="${y(v)}"/>
      <text x="${left - 5}" y="${y(v) + 4}" text-anchor="end">${v}</text>`).join("")}
      <text x="${left}" y="${height - 7}">0</text>
      <text x="${width - right}" y="${height - 7}" text-anchor="end">${longest()} local steps</text></g>
    <polyline class="before" points="${line(old.map(row => [row.steps, mean(row[name])]))}"/>
    ${DOMAINS.map((_, k) => `<polyline stroke-dasharray="${DASHES[k]}" points="${
      line(rows.map(row => [row.steps, row[name][k]]))}"/>`).join("")}
    ${ends.map(({ k, at }) => `<text class="end" x="${x(rows.at(-1).steps) + 5}" y="${at - over + 4}">${DOMAINS[k].name}</text>`).join("")}
  </svg>`;
}

/** A round number that is at least the value: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(step => step * power).find(v => v >= value * 0.999);
}

/* ---- The page ---- */

/** Draw everything; `said` takes the place of the sentence about the round. */
function show(said = sentence()) {
  const { settings, clients } = state, { one } = nets();
  find(".round").textContent = `round ${state.round}`;
  find("[data-do=play]").textContent = timer ? "Pause" : "Play";
  for (const action of ["step", "play"]) find(`[data-do=${action}]`).disabled = fallen;
  const line = find(".said");
  line.setAttribute("aria-live", timer ? "off" : "polite");      // while it plays, only the last round is read out
  if (line.textContent !== said) line.textContent = said;
  line.classList.toggle("fallen", fallen);
  showControls(settings);

  const server = one && !fallen && asked(clients[0].net, state.server);
  const world = find("[data-map=all]");
  drawMap(world.firstChild, { tint: server, line: server, clients: [0, 1, 2], points: "test", size: 4.5 });
  world.parentNode.lastElementChild.textContent = one ? "The server's net and all clients' test points"
    : "All clients' test points; there is no one net";
  world.firstChild.setAttribute("aria-label", `All test points and the domains' centres. Right: ${
    clients.map(c => `${c.name} ${percent(c.acc)}`).join(", ")}.`);
  clients.forEach((client, k) => {
    const figure = find(`[data-client="${k}"]`), handle = find(`[data-handle="${k}"]`);
    drawMap(figure.querySelector("canvas"), { clients: [k], points: "train", size: 2.6,
      tint: !fallen && asked(client.trained, client.trained), line: one ? server : !fallen && asked(client.net, client.net) });
    figure.querySelector("canvas").setAttribute("aria-label", `The points of client ${client.name} and what its net answers`);
    figure.querySelector("figcaption").innerHTML = `<b>${client.name}</b> <span>trained ${percent(client.after)}</span> `
      + `<span>${one || settings.method === "FedBN" ? "averaged" : "its own"} ${percent(client.acc)}</span>`;
    const [left, up] = client.centre;
    handle.style.left = `${50 * (1 + left / VIEW)}%`;
    handle.style.top = `${50 * (1 - up / VIEW)}%`;
    handle.setAttribute("aria-valuenow", left.toFixed(1));
    handle.setAttribute("aria-valuetext", `${left.toFixed(1)} to the right, ${up.toFixed(1)} up`);
  });

  const mix = find("[data-map=mix]"), about = drawMix(mix.firstChild);
  mix.nextElementSibling.innerHTML = `<b>What is averaged.</b> ${about}`;
  mix.firstChild.setAttribute("aria-label", about);
  const far = [...history, ...earlier("far")].flatMap(row => row.far ?? []), top = ceiling(Math.max(0.1, ...far));
  chart("acc", 100, [0, 33, 67, 100], "Accuracy (%) of each client with the net that it has after a round");
  chart("far", top, [0, top / 2, top], state.protos || settings.method === "FedProto"
    ? "Distance of each client's prototypes from their mean" : "Distance of each client's net from the average");
  find("table").innerHTML = `<thead><tr><th>client</th><th>trained (%)</th><th>has now (%)</th><th>from the average</th>
    <th>test loss</th></tr></thead><tbody>${clients.map((c, k) => `<tr><th scope="row">${c.name}</th>
    <td>${c.after.toFixed(1)}</td><td>${c.acc.toFixed(1)}</td><td>${short(history.at(-1).far?.[k] ?? 0)}</td>
    <td>${short(c.testLoss)}</td></tr>`).join("")}</tbody>
    <caption>A client sends ${federation.traffic(state)} numbers in a round.</caption>`;
}

function chart(name, top, ticks, title) {
  const box = find(`[data-chart=${name}]`);
  box.innerHTML = curves(name, top, ticks, title);
  box.nextElementSibling.textContent = title + ".";
}

/** The controls show the settings. */
function showControls(settings) {
  for (const radio of root.querySelectorAll("[name=method]")) radio.checked = radio.value === settings.method;
  find("[name=norm]").checked = settings.norm;
  for (const [name, { values, method, unit = "" }] of Object.entries(SLIDERS)) {
    const slider = find(`[name=${name}]`), text = `${settings[name]}${unit}`;
    slider.value = values.indexOf(settings[name]);
    slider.setAttribute("aria-valuetext", text);
    slider.nextElementSibling.textContent = text;
    slider.parentNode.hidden = Boolean(method) && method !== settings.method;
  }
}

/** Put what is made by name into the page: the methods, the sliders, the clients' maps, the handles. */
function furnish() {
  find(".methods").insertAdjacentHTML("beforeend", Object.keys(METHODS).map(name =>
    `<label><input type="radio" name="method" value="${name}"><span>${name}</span></label>`).join(""));
  find(".sliders").innerHTML = Object.entries(SLIDERS).map(([name, { text, values }]) =>
    `<label>${text} <input type="range" name="${name}" min="0" max="${values.length - 1}"><span aria-hidden="true"></span></label>`).join("");
  find(".clients").innerHTML = DOMAINS.map((_, k) =>
    `<figure data-client="${k}"><div class="map"><canvas role="img"></canvas></div><figcaption></figcaption></figure>`).join("");
  find("[data-map=all]").insertAdjacentHTML("beforeend", DOMAINS.map(({ name }, k) =>
    `<div class="handle" data-handle="${k}" role="slider" tabindex="0" aria-label="Domain ${name}, moved by arrow keys"
      aria-valuemin="${-REACH}" aria-valuemax="${REACH}">${name}</div>`).join(""));
}

/** Hand on what the reader does. */
function listen() {
  const actions = {
    step: () => { pause(); advance(); show(); },
    play: () => { if (timer) pause(); else playUntil(state.round + LONGEST); show(); },
    reset: () => { begin(state.settings, state.clients.map(client => client.centre)); show(); },
  };
  root.addEventListener("click", event => actions[event.target.dataset.do]?.());
  root.addEventListener("submit", event => event.preventDefault());
  root.addEventListener("input", ({ target: { name, type, value, checked } }) => {
    change(name, type === "range" ? SLIDERS[name].values[value] : type === "checkbox" ? checked : value);
  });
  for (const handle of root.querySelectorAll(".handle")) drag(handle, +handle.dataset.handle);
  new ResizeObserver(() => show(find(".said").textContent || undefined)).observe(find("[data-map=all]"));
  new MutationObserver(() => show(find(".said").textContent)).observe(document.documentElement, { attributeFilter: ["data-theme"] });
}

/** A handle follows the pointer and the arrow keys. */
function drag(handle, k) {
  const map = handle.parentNode, arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  handle.addEventListener("pointerdown", event => handle.setPointerCapture(event.pointerId));
  handle.addEventListener("pointermove", event => {
    if (!handle.hasPointerCapture(event.pointerId)) return;
    const { left, top, width } = map.getBoundingClientRect();
    place(k, [VIEW * (2 * (event.clientX - left) / width - 1), VIEW * (1 - 2 * (event.clientY - top) / width)]);
  });
  handle.addEventListener("keydown", event => {
    if (!(event.key in arrows)) return;
    event.preventDefault();
    const by = event.shiftKey ? 0.5 : 0.1, centre = state.clients[k].centre;
    place(k, arrows[event.key].map((v, i) => centre[i] + by * v));
  });
}

/** The lessons, one at a time: their buttons set up a run and play it. */
function teach() {
  const lessons = [...document.querySelectorAll(".playground-lessons > ol > li")];
  if (!lessons.length) return;
  const bar = document.createElement("div");
  bar.className = "lesson-bar";
  bar.innerHTML = `<button type="button" aria-label="Previous">‹</button><span></span><button type="button" aria-label="Next">›</button>`;
  lessons[0].parentNode.before(bar);
  const open = at => {
    lessons.forEach((lesson, i) => { lesson.hidden = i !== at; });
    bar.children[1].textContent = `Try this: ${at + 1} of ${lessons.length}`;
    bar.firstChild.onclick = () => open((at + lessons.length - 1) % lessons.length);
    bar.lastChild.onclick = () => open((at + 1) % lessons.length);
  };
  open(0);
  for (const button of document.querySelectorAll("[data-try]")) button.addEventListener("click", () => {
    begin(JSON.parse(button.dataset.try));
    playUntil(+button.dataset.rounds);
    show();
    find(".world").scrollIntoView({ block: "nearest" });
  });
}

furnish();
begin({});
listen();
teach();
show();
})();
