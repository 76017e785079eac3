/* The page of the playground: keeps a state of `federation`, shows it by `drawing`, hands on what a reader does. */
(() => {
"use strict";

const root = document.getElementById("playground"), find = selector => root.querySelector(selector);
const { METHODS, DOMAINS } = federation, { VIEW } = drawing;
const NAMES = DOMAINS.map(({ name }) => name);

const REACH = 2.8;              // so far from the middle a centre may be dragged
const LONGEST = 400;            // rounds that Play goes on for
const SLIDERS = {               // a setting, the values that it may have, and its method
  shift: { text: "shift of the domains", values: range(0, 2, 0.1) },
  turn: { text: "turn of B and C", values: range(0, 90, 5), unit: "°" },
  steps: { text: "local steps in a round", values: [1, 2, 5, 10, 20, 50] },
  lr: { text: "learning rate", values: [0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1, 3] },
  mu: { text: "μ, strength of the rope", values: [0, 0.03, 0.1, 0.3, 1, 3, 5, 10], method: "FedProx" },
  lam: { text: "λ, pull of the prototypes", values: [0, 0.03, 0.1, 0.3, 1, 3], method: "FedProto" },
  seed: { text: "seed", values: range(0, 9, 1) },
};

let state;                      // of the federation; once it has diverged, the last state before
let record, before = [];        // what each round measured, of this run and of the one before
let fallen = false;             // has it diverged?
let clock = null;               // of Play

function range(from, to, step) {
  return Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => +(from + i * step).toFixed(2));
}

/* ---- What happens ---- */

/** A new run; the domains are at these places, or where the shift puts them. */
function begin(settings, places) {
  pause();
  if (record?.length > 1) before = record;
  state = federation.begin(settings, places);
  record = [measured(0)];
  fallen = false;
}

/** One round, if there is one left to play. */
function advance() {
  if (fallen) return;
  const next = federation.play(state);
  fallen = federation.diverged(next);
  if (fallen) return pause();
  state = next;
  record.push(measured(record.at(-1).steps + state.settings.steps));
}

/** What is kept of a round: local steps so far, accuracies, how far the clients are from the average and of what. */
function measured(steps) {
  const { clients, protos } = state, moves = federation.drift(state);
  const far = moves?.far ?? (protos && clients.map(client => apart(client.protos, protos)));
  return { steps, acc: clients.map(client => client.acc), far, of: METHODS[state.settings.method].prototypes };
}

/** Play so many rounds, each drawn before the next one starts. */
function playOn(rounds) {
  const end = state.round + rounds, pace = state.settings.steps === 1 ? 50 : 150;       // milliseconds
  const tick = () => {
    const start = performance.now();
    advance();
    if (state.round >= end) pause();
    show(sentence());
    if (clock) clock = setTimeout(tick, Math.max(10, pace - (performance.now() - start)));
  };
  clock = setTimeout(tick, 0);
}

function pause() {
  clearTimeout(clock);
  clock = null;
}

const places = () => state.clients.map(client => client.centre);

/** A setting was changed: data follow at once, a new net begins a new run, the rest counts from the next round. */
function change(name, value) {
  const settings = { ...state.settings, [name]: value }, at = name === "shift" ? undefined : places();
  if (fallen || ["method", "norm", "seed"].includes(name)) {
    begin(settings, at);
    show(sentence());
  } else if (["shift", "turn"].includes(name)) {
    state = federation.moved({ ...state, settings }, at);
    show(`The domains moved. Their test points are answered rightly by ${each("acc")} now.`);
  } else {
    state = { ...state, settings };
    show(`From the next round on: ${SLIDERS[name].text}, ${value}.`);
  }
}

/** The centre of domain k goes to this place. */
function place(k, centre) {
  const at = places().map((old, i) => i === k ? centre.map(v => Math.max(-REACH, Math.min(REACH, v))) : old);
  if (fallen) begin(state.settings, at);
  else state = federation.moved(state, at);
  show(`${NAMES[k]} moved. ${percent(state.clients[k].acc)} of its test points are answered rightly now.`);
}

/* ---- What is said ---- */

const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
const apart = (some, others) => mean(some.map((p, i) => Math.hypot(p[0] - others[i][0], p[1] - others[i][1])));
const percent = value => `${Math.round(value)} %`;
const short = value => value >= 100 ? value.toExponential(0) : value.toFixed(2);

/** Of all clients, "97, 100 and 53 %". */
function each(name) {
  const values = state.clients.map(client => Math.round(client[name]));
  return `${values.slice(0, -1).join(", ")} and ${values.at(-1)} %`;
}

/** What happened last, in a few sentences. */
function sentence() {
  const { round, settings: { method, norm, lr, mu }, clients, protos } = state;
  if (fallen) {
    const why = method === "FedProx" && lr * mu > 2
      ? `Rate times μ is ${+(lr * mu).toFixed(2)}: above 2, every step on the rope jumps further to the other side.`
      : "A lower rate, fewer steps or a weaker pull may hold it.";
    return `Diverged in round ${round + 1}: the loss left all bounds. ${why} Start again.`;
  }
  if (!round) {
    return `Before the first round. All hold the same new net, which is right on ${each("acc")} of their test points; `
      + `guessing gives 33 %.${method === "FedBN" && !norm ? " Without a norm layer FedBN is FedAvg." : ""}`;
  }
  const steps = clients[0].path.length - 1, moves = federation.drift(state), far = moves && mean(moves.far);
  const home = `Round ${round}: after ${steps} local step${steps === 1 ? "" : "s"} the clients are right on `
    + `${each("after")} at home.`;
  if (moves) {
    const now = method !== "FedBN" ? "The average is" : norm ? "The average, with each client's own norm layer, is"
      : "Without a norm layer this is FedAvg, and the average is";
    return `${home} Their nets ended ${short(far)} from the average, and ${percent(100 * moves.cancels)} of their `
      + `moves cancelled. ${now} right on ${each("acc")}.`;
  }
  if (!protos) return `${home} Nothing travelled.`;
  return `${home} Only prototypes travelled: those of a class lie ${short(mean(record.at(-1).far))} from their mean, `
    + `two classes ${short(apart(protos, [1, 2, 0].map(c => protos[c])))} from each other.`;
}

/* ---- What is shown ---- */

/** Show the state, and say this. */
function show(said) {
  const line = find(".said");
  line.setAttribute("aria-live", clock ? "off" : "polite");       // of a run that plays only the end is read out
  if (line.textContent !== said) line.textContent = said;
  line.classList.toggle("fallen", fallen);
  find(".round").textContent = `round ${state.round}`;
  find("[data-do=play]").textContent = clock ? "Pause" : "Play";
  for (const action of ["step", "play"]) find(`[data-do=${action}]`).disabled = fallen;
  showSettings();
  showMaps();
  showAverage();
  showCurves();
  showNumbers();
}

function showSettings() {
  const { settings } = state;
  for (const radio of root.querySelectorAll("[name=method]")) radio.checked = radio.value === settings.method;
  find("[name=norm]").checked = settings.norm;
  for (const [name, { values, method, unit = "" }] of Object.entries(SLIDERS)) {
    const slider = find(`[name=${name}]`), text = `${settings[name]}${unit}`;
    slider.value = values.indexOf(settings[name]);
    slider.setAttribute("aria-valuetext", text);
    slider.nextElementSibling.textContent = text;
    slider.parentNode.hidden = method !== undefined && method !== settings.method;
  }
}

/** The map of all and those of the clients. A net that has diverged is not drawn. */
function showMaps() {
  const { clients, server, settings: { method } } = state, { personal } = METHODS[method];
  const shared = !personal && !fallen && drawing.asked(clients[0].net, server);
  const all = clients.map(({ test, net }, k) => ({ k, ...test, answers: federation.answers(net, test.x) }));
  picture("all", canvas => drawing.map(canvas, { tint: shared, line: shared, clients: all, size: 4.5 }),
          personal ? "The test points of all; there is no one net." : "The server's net and the test points of all.",
          `Answered rightly: ${clients.map(({ name, acc }) => `${name} ${percent(acc)}`).join(", ")}.`);
  clients.forEach(({ name, train, trained, net, after, acc, centre: [left, up] }, k) => {
    const tint = !fallen && drawing.asked(trained), line = personal ? !fallen && drawing.asked(net) : shared;
    picture(name, canvas => drawing.map(canvas, { tint, line, clients: [{ k, ...train }], size: 2.6 }),
            `<b>${name}</b> trained ${percent(after)}, ${net === trained ? "its own" : "averaged"} ${percent(acc)}`);
    const handle = find(`[data-handle="${k}"]`);
    handle.style.left = `${50 * (1 + left / VIEW)}%`;
    handle.style.top = `${50 * (1 - up / VIEW)}%`;
    handle.setAttribute("aria-valuenow", left.toFixed(1));
    handle.setAttribute("aria-valuetext", `${left.toFixed(1)} to the right, ${up.toFixed(1)} up`);
  });
}

/** The nets or the prototypes that the server averages. */
function showAverage() {
  const { clients, protos, round } = state, moves = federation.drift(state), title = "<b>What is averaged.</b>";
  if (moves) {
    const rows = [...record, ...earlier()], reach = Math.max(0.05, ...rows.flatMap(row => row.far ?? []));
    picture("average", canvas => drawing.moves(canvas, moves, NAMES, reach),    // one scale for this run and the last
            `${title} The plane of the three nets, ${short(mean(moves.far))} from their average ✚; ○ was sent.`);
  } else if (protos) {
    const own = clients.map(c => ({ own: c.protos, y: c.train.y, z: federation.forward(c.net, c.train.x).z }));
    picture("average", canvas => drawing.prototypes(canvas, own, protos),
            `${title} Features, and each client's mean of a class (large); ✚ is the mean of the clients'.`);
  } else picture("average", drawing.blank, `${title} ${round ? "Nothing travels." : "It shows after a round."}`);
}

/** Draw on the canvas of this name; the caption below it is also what is read out, with more to it. */
function picture(name, draw, caption, more = "") {
  const map = find(`[data-map="${name}"]`), canvas = map.querySelector("canvas");
  draw(canvas);
  map.nextElementSibling.innerHTML = caption;
  canvas.setAttribute("aria-label", `${map.nextElementSibling.textContent} ${more}`);
}

/** Rounds of the run before whose distances are of the same kind. */
const earlier = () => before.filter(row => row.far && row.of === record[0].of);

function showCurves() {
  const { of, steps } = record.at(-1), end = Math.max(50, steps);
  const draw = (name, rows, faint, how) => {
    const chart = find(`[data-chart=${name}]`), unit = "local steps";
    chart.innerHTML = drawing.curves(rows.map(row => [row.steps, row[name]]),
                                     faint.filter(row => row.steps <= end).map(row => [row.steps, mean(row[name])]),
                                     NAMES, { ...how, unit, end });
    chart.nextElementSibling.textContent = `${how.title}.`;
  };
  draw("acc", record, before, { title: "Accuracy (%) of the net that each client has after a round",
                                top: 100, ticks: [0, 1 / 3, 2 / 3, 1] });
  draw("far", record.filter(row => row.far), earlier(),
       { title: `Distance of each client's ${of ? "prototypes from their mean" : "net from the average"}` });
}

function showNumbers() {
  const rows = state.clients.map(({ name, after, acc, testLoss }, k) => `<tr><th scope="row">${name}</th>
    <td>${after.toFixed(1)}</td><td>${acc.toFixed(1)}</td><td>${short(testLoss)}</td>
    <td>${record.at(-1).far ? short(record.at(-1).far[k]) : "–"}</td></tr>`);
  find("table").innerHTML = `<caption>A client sends ${federation.traffic(state)} numbers in a round.</caption>
    <thead><tr><th>client</th><th>trained (%)</th><th>after the round (%)</th><th>test loss</th>
    <th>from the average</th></tr></thead><tbody>${rows.join("")}</tbody>`;
}

/* ---- What a reader does ---- */

/** Put into the page what is made by name: methods, sliders, the clients' maps, the handles of their domains. */
function furnish() {
  find(".methods").insertAdjacentHTML("beforeend", Object.keys(METHODS).map(name =>
    `<label><input type="radio" name="method" value="${name}"><span>${name}</span></label>`).join(""));
  find(".sliders").innerHTML = Object.entries(SLIDERS).map(([name, { text, values: { length } }]) => `<label>${text}
    <input type="range" name="${name}" min="0" max="${length - 1}"><span aria-hidden="true"></span></label>`).join("");
  find(".clients").innerHTML = NAMES.map(name => `<figure><div class="map" data-map="${name}">
    <canvas role="img"></canvas></div><figcaption></figcaption></figure>`).join("");
  find("[data-map=all]").insertAdjacentHTML("beforeend", NAMES.map((name, k) =>
    `<div class="handle" data-handle="${k}" role="slider" tabindex="0" aria-label="Domain ${name}, moved by arrow keys"
      aria-valuemin="${-REACH}" aria-valuemax="${REACH}">${name}</div>`).join(""));
}

function listen() {
  const actions = {
    step() { pause(); advance(); },
    play() { if (clock) pause(); else playOn(LONGEST); },
    reset() { begin(state.settings, places()); },
  };
  root.addEventListener("click", ({ target }) => {
    if (!(target.dataset.do in actions)) return;
    actions[target.dataset.do]();
    show(sentence());
  });
  root.addEventListener("submit", event => event.preventDefault());
  root.addEventListener("input", ({ target: { name, type, value, checked } }) => {
    change(name, type === "range" ? SLIDERS[name].values[value] : type === "checkbox" ? checked : value);
  });
  root.querySelectorAll(".handle").forEach(drag);
  const again = () => show(find(".said").textContent);        // another width, light or dark
  new ResizeObserver(again).observe(find("[data-map=all]"));
  new MutationObserver(again).observe(document.documentElement, { attributeFilter: ["data-theme"] });
}

/** A handle follows the pointer and the arrow keys. */
function drag(handle, k) {
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  handle.addEventListener("pointerdown", event => handle.setPointerCapture(event.pointerId));
  handle.addEventListener("pointermove", ({ pointerId, clientX, clientY }) => {
    if (!handle.hasPointerCapture(pointerId)) return;
    const { left, top, width } = handle.parentNode.getBoundingClientRect();
    place(k, [VIEW * (2 * (clientX - left) / width - 1), VIEW * (1 - 2 * (clientY - top) / width)]);
  });
  handle.addEventListener("keydown", event => {
    if (!(event.key in arrows)) return;
    event.preventDefault();
    place(k, places()[k].map((v, axis) => v + (event.shiftKey ? 0.5 : 0.1) * arrows[event.key][axis]));
  });
}

/** The lessons, one at a time; their buttons set up a run and play it. */
function teach() {
  const lessons = [...document.querySelectorAll(".playground-lessons > ol > li")], bar = document.createElement("div");
  bar.className = "lesson-bar";
  bar.innerHTML = `<button type="button" aria-label="Previous">‹</button><span></span>
    <button type="button" aria-label="Next">›</button>`;
  const [back, name, on] = bar.children, open = at => {
    lessons.forEach((lesson, i) => { lesson.hidden = i !== at; });
    name.textContent = `Try this: ${at + 1} of ${lessons.length}`;
    back.onclick = () => open((at + lessons.length - 1) % lessons.length);
    on.onclick = () => open((at + 1) % lessons.length);
  };
  open(0);
  lessons[0].parentNode.before(bar);
  for (const button of document.querySelectorAll("[data-try]")) button.addEventListener("click", () => {
    begin(JSON.parse(button.dataset.try));
    playOn(+button.dataset.rounds);
    show(sentence());
    find(".world").scrollIntoView({ block: "nearest" });
  });
}

furnish();
begin({});
teach();
show(sentence());
listen();
})();
