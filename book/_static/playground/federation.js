/* Federated learning of a small net on points in the plane, round by round.

   Pure functions: nothing here knows of a page, a clock or Math.random, and nothing is changed in place; a round takes
   a state and returns the next one. What fedlib does with tensors is done with arrays: an entry of a net is a flat
   array under the name that it has in PyTorch, a batch is an array of rows. tests/book/test_playground.py plays the
   same rounds with fedlib's own classes and compares the numbers.

       x (2) -> hidden (8) -> [norm] -> tanh -> features z (2) -> head -> logits (3)
       '------------------------- body ---------------------'                                                       */
const federation = (() => {
"use strict";

const CLASSES = 3, HIDDEN = 8, FEATURES = 2;
const EPS = 1e-5, MOMENTUM = 0.1;       // of batch normalisation, as in PyTorch
const DEFAULTS = {
  method: "FedAvg", norm: false, steps: 10, lr: 0.3, mu: 0.3, lam: 1, shift: 1.5, turn: 0, seed: 0,
};

/* ---- The methods: what travels, and what is added to a client's loss ---- */

const METHODS = {
  FedAvg: { travels: () => true },
  FedProx: { travels: () => true, rope: true },                             // + mu/2 |w_k - w|^2
  FedBN: { travels: name => !name.startsWith("body.norm"), personal: true },
  FedProto: { travels: () => false, personal: true, prototypes: true },     // + lam mean (z - P^y)^2
  Local: { travels: () => false, personal: true },
};

/* ---- Arithmetic on lists, batches and nets ---- */

const sum = values => values.reduce((a, b) => a + b, 0);
const mean = values => sum(values) / values.length;
const columns = (rows, f) => rows[0].map((_, j) => f(rows.map(row => row[j])));
const last = list => list[list.length - 1];
const highest = row => row.indexOf(Math.max(...row));
const pick = (net, keep) => Object.fromEntries(Object.entries(net).filter(([name]) => keep(name)));

/** sum_k s_k w_k, entry by entry. */
function average(nets, shares) {
  return Object.fromEntries(Object.keys(nets[0]).map(name =>
    [name, nets[0][name].map((_, i) => sum(nets.map((net, k) => shares[k] * net[name][i])))]));
}

/* ---- Random numbers: the same for the same seed ---- */

/** Uniform numbers in [0, 1) from 32 bits of state; the generator is known as mulberry32. */
function uniform(seed) {
  let state = Math.imul(seed + 1, 0x9E3779B1);
  return () => {
    state = state + 0x6D2B79F5 | 0;
    let t = Math.imul(state ^ state >>> 15, 1 | state);
    t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t;
    return ((t ^ t >>> 14) >>> 0) / 2 ** 32;
  };
}

/** Standard normal numbers, by Box and Muller. */
function normal(seed) {
  const next = uniform(seed);
  return () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
}

/* ---- Data: three clients, each with a domain of its own and the same three classes ---- */

const DOMAINS = [       // where a shift of 1 takes a domain, how it sizes it (e^size), and the sense in which it turns
  { name: "A", to: [-1.0, 0.7], size: 0, sense: 0 },
  { name: "B", to: [1.1, 0.5], size: 0.2, sense: 1 },
  { name: "C", to: [0.1, -1.2], size: -0.2, sense: -1 },
];
const EACH = 20, SPREAD = 0.3;      // points of a class in a split; standard deviation of a cloud

const centres = shift => DOMAINS.map(({ to }) => to.map(v => v * shift));

/** A split of domain k, {x: rows, y: classes}; in single precision, as what goes into fedlib's nets. */
function points(k, [left, up], { shift, turn, seed }, test) {
  const next = normal(100 * seed + 10 * k + test), split = { x: [], y: [] };
  const angle = DOMAINS[k].sense * turn * Math.PI / 180, size = Math.exp(DOMAINS[k].size * shift);
  for (let y = 0; y < CLASSES; y++) {
    const place = Math.PI * (1 / 2 + 2 * y / CLASSES);
    for (let i = 0; i < EACH; i++) {
      const u = Math.cos(place) + SPREAD * next(), v = Math.sin(place) + SPREAD * next();
      split.x.push([left + size * (u * Math.cos(angle) - v * Math.sin(angle)),
                    up + size * (u * Math.sin(angle) + v * Math.cos(angle))].map(Math.fround));
      split.y.push(y);
    }
  }
  return split;
}

/* ---- The net, forwards ---- */

/** A new net: weights uniform within 1 / sqrt(inputs) of zero, as PyTorch draws them; a norm layer that is neutral. */
function fresh(norm, seed) {
  const next = uniform(7919 * seed + 17), filled = value => Array(HIDDEN).fill(value);
  const drawn = (count, inputs) => Array.from({ length: count }, () => (2 * next() - 1) / Math.sqrt(inputs));
  return {
    "body.hidden.weight": drawn(HIDDEN * 2, 2), "body.hidden.bias": drawn(HIDDEN, 2),
    ...(norm && { "body.norm.weight": filled(1), "body.norm.bias": filled(0),
                  "body.norm.running_mean": filled(0), "body.norm.running_var": filled(1) }),
    "body.features.weight": drawn(FEATURES * HIDDEN, HIDDEN), "body.features.bias": drawn(FEATURES, HIDDEN),
    "head.weight": drawn(CLASSES * FEATURES, FEATURES), "head.bias": drawn(CLASSES, FEATURES),
  };
}

const trainable = name => !name.includes("running");

/** y = W x + b for each row x; W lies row after row in its flat array. */
function linear(net, layer, x) {
  const weight = net[`${layer}.weight`], bias = net[`${layer}.bias`], inputs = x[0].length;
  return x.map(row => bias.map((b, j) => {
    for (let i = 0; i < inputs; i++) b += weight[j * inputs + i] * row[i];
    return b;
  }));
}

/** Batch normalisation: each column less its mean, by its spread; then scaled and moved by what the layer learned. */
function normalise(net, rows, moments) {
  const scale = net["body.norm.weight"], move = net["body.norm.bias"];
  const unit = rows.map(row => row.map((v, j) => (v - moments.mean[j]) / Math.sqrt(moments.variance[j] + EPS)));
  return { unit, moments, out: unit.map(row => row.map((v, j) => scale[j] * v + move[j])) };
}

const variance = values => { const m = mean(values); return mean(values.map(v => (v - m) ** 2)); };
const ofBatch = rows => ({ mean: columns(rows, mean), variance: columns(rows, variance) });
const remembered = net => ({ mean: net["body.norm.running_mean"], variance: net["body.norm.running_var"] });

/** All that a pass computes. In training the norm layer uses the moments of the batch, in a test those it remembers. */
function forward(net, x, training = false) {
  const hidden = linear(net, "body.hidden", x);
  const normed = "body.norm.weight" in net && normalise(net, hidden, training ? ofBatch(hidden) : remembered(net));
  const active = (normed ? normed.out : hidden).map(row => row.map(Math.tanh));
  const z = linear(net, "body.features", active);
  return { x, normed, active, z, logits: linear(net, "head", z) };
}

/** log sum_c e^{l_c}, without overflow. */
function logSum(logits) {
  const top = Math.max(...logits);
  return top + Math.log(sum(logits.map(v => Math.exp(v - top))));
}

const crossEntropy = (logits, y) => mean(logits.map((row, n) => logSum(row) - row[y[n]]));
const distance = (z, y, protos) => mean(z.flatMap((row, n) => row.map((v, j) => (v - protos[y[n]][j]) ** 2)));

/* ---- The net, backwards: from the gradient of what a layer gives to that of what it takes ---- */

/** dL/dx = W^T dL/dy; dL/dW and dL/db, sums over the batch, go into `grads`. */
function linearBack(net, layer, x, dy, grads) {
  const weight = net[`${layer}.weight`], inputs = x[0].length;
  const dw = weight.map(() => 0), db = dy[0].map(() => 0);
  const dx = dy.map((row, n) => {
    const back = x[n].map(() => 0);
    row.forEach((d, j) => {
      db[j] += d;
      for (let i = 0; i < inputs; i++) {
        dw[j * inputs + i] += d * x[n][i];
        back[i] += d * weight[j * inputs + i];
      }
    });
    return back;
  });
  grads[`${layer}.weight`] = dw;
  grads[`${layer}.bias`] = db;
  return dx;
}

/** Through the norm layer: a row also moves the mean and the spread of its batch. */
function normBack(net, { unit, moments }, dy, grads) {
  const along = dy.map((row, n) => row.map((d, j) => d * unit[n][j])), scale = net["body.norm.weight"];
  const level = columns(dy, mean), slope = columns(along, mean);
  grads["body.norm.weight"] = columns(along, sum);
  grads["body.norm.bias"] = columns(dy, sum);
  return dy.map((row, n) => row.map((d, j) =>
    scale[j] * (d - level[j] - slope[j] * unit[n][j]) / Math.sqrt(moments.variance[j] + EPS)));
}

/** Gradients of the cross-entropy, plus lam times the distance of the features from prototypes where there are any. */
function gradients(net, { x, normed, active, z, logits }, y, lam, protos) {
  const grads = {};
  const dlogits = logits.map((row, n) => {
    const log = logSum(row);
    return row.map((v, c) => (Math.exp(v - log) - (c === y[n])) / y.length);
  });
  let dz = linearBack(net, "head", z, dlogits, grads);
  if (protos) {
    const each = 2 * lam / (y.length * FEATURES);
    dz = dz.map((row, n) => row.map((d, j) => d + each * (z[n][j] - protos[y[n]][j])));
  }
  let dy = linearBack(net, "body.features", active, dz, grads);
  dy = dy.map((row, n) => row.map((d, j) => d * (1 - active[n][j] ** 2)));
  if (normed) dy = normBack(net, normed, dy, grads);
  linearBack(net, "body.hidden", x, dy, grads);
  return grads;
}

/* ---- A client ---- */

/** One step of gradient descent on a whole split, from the net to the next one: {net, loss}. */
function step(net, { x, y }, { method, lr, mu, lam }, start, protos) {
  const { rope, prototypes } = METHODS[method], pull = prototypes && protos;
  const pass = forward(net, x, true), grads = gradients(net, pass, y, lam, pull);
  let loss = crossEntropy(pass.logits, y) + (pull ? lam * distance(pass.z, y, protos) : 0);
  const next = { ...net };
  for (const name in grads) {
    const away = net[name].map((w, i) => w - start[name][i]);
    next[name] = net[name].map((w, i) => w - lr * (grads[name][i] + (rope ? mu * away[i] : 0)));
    if (rope) loss += mu / 2 * sum(away.map(v => v ** 2));
  }
  if (pass.normed) {
    const now = pass.normed.moments, unbiased = y.length / (y.length - 1);
    const remember = (name, values) => { next[name] = net[name].map((v, j) => v + MOMENTUM * (values[j] - v)); };
    remember("body.norm.running_mean", now.mean);
    remember("body.norm.running_var", now.variance.map(v => v * unbiased));
  }
  return { net: next, loss };
}

/** Local training: the nets after 0, 1, 2, ... steps, and the mean loss on the way. */
function train(start, split, settings, protos) {
  const path = [start], losses = [];
  for (let i = 0; i < settings.steps; i++) {
    const { net, loss } = step(last(path), split, settings, start, protos);
    path.push(net);
    losses.push(loss);
  }
  return { path, loss: mean(losses) };
}

/** The mean feature of each class. */
function prototypes(net, { x, y }) {
  const { z } = forward(net, x);
  return Array.from({ length: CLASSES }, (_, c) => columns(z.filter((_, n) => y[n] === c), mean));
}

const answers = (net, x) => forward(net, x).logits.map(highest);
const accuracy = (net, { x, y }) => 100 * mean(answers(net, x).map((answer, n) => +(answer === y[n])));

/* ---- The federation ---- */

/** Before the first round: the data, and the same new net for all. */
function begin(settings = {}, places) {
  settings = { ...DEFAULTS, ...settings };
  const net = fresh(settings.norm, settings.seed);
  const clients = DOMAINS.map(({ name }) => ({ name, path: [net] }));
  const server = pick(net, METHODS[settings.method].travels);
  return moved({ settings, clients, server, protos: null, round: 0, loss: 0 }, places);
}

/** The same federation with the domains at other places; the nets stay. */
function moved(state, places = centres(state.settings.shift)) {
  const split = (k, test) => points(k, places[k], state.settings, test);
  return tested({ ...state, clients: state.clients.map((client, k) =>
    ({ ...client, centre: places[k], train: split(k, 0), test: split(k, 1) })) });
}

/** One round: the server sends, the clients train, the server averages what comes back; then a test. */
function play(state) {
  const { settings, clients, server, protos } = state, method = METHODS[settings.method];
  const ends = clients.map(client => train({ ...last(client.path), ...server }, client.train, settings, protos));
  const nets = ends.map(({ path }) => last(path));
  const own = nets.map((net, k) => prototypes(net, clients[k].train));
  const sizes = clients.map(client => client.train.y.length);
  return tested({ ...state, round: state.round + 1, loss: mean(ends.map(end => end.loss)),
    clients: clients.map((client, k) => ({ ...client, path: ends[k].path, protos: own[k] })),
    server: average(nets.map(net => pick(net, method.travels)), sizes.map(n => n / sum(sizes))),
    protos: method.prototypes ? own[0].map((_, c) => columns(own.map(p => p[c]), mean)) : null });
}

/** With the net that each client has trained, the net that it would use now, and what either answers rightly (%). */
function tested(state) {
  const { travels } = METHODS[state.settings.method], shares = Object.keys(state.clients[0].path[0]).some(travels);
  return { ...state, clients: state.clients.map(client => {
    const trained = last(client.path), net = shares ? { ...trained, ...state.server } : trained;
    return { ...client, trained, net, after: accuracy(trained, client.test), acc: accuracy(net, client.test),
             testLoss: crossEntropy(forward(net, client.test.x).logits, client.test.y) };
  }) };
}

/** Is a loss no number any more, or absurd? That of guessing is log 3. */
const diverged = ({ loss, clients }) => ![loss, ...clients.map(c => c.testLoss)].every(v => Math.abs(v) < 1e3);

/** How the clients moved in the last round, over the weights that travel; null where none do or nothing has moved.

    far: how far each client's net ended from the average of all; cancels: the share of their moves D_k that the average
    loses, 1 - |mean D|^2 / mean |D_k|^2; paths: each client's way in the plane through the three ends, in which the
    distances between the ends are true, with the average at (0, 0). */
function drift({ server, clients, round }) {
  const names = Object.keys(server).filter(trainable);
  if (!names.length || !round) return null;
  const flat = net => names.flatMap(name => net[name]), minus = (a, b) => a.map((v, i) => v - b[i]);
  const dot = (a, b) => sum(a.map((v, i) => v * b[i])), norm = a => Math.sqrt(dot(a, a));
  const centre = flat(server), start = flat(clients[0].path[0]);
  const unit = a => a.map(v => v / (norm(a) || 1));
  const [a, b, c] = clients.map(client => minus(flat(client.trained), centre));
  const along = unit(minus(b, a)), rest = minus(c, a), across = unit(minus(rest, along.map(v => v * dot(rest, along))));
  const moves = clients.map(client => norm(minus(flat(client.trained), start)) ** 2);
  return {
    far: [a, b, c].map(norm),
    cancels: 1 - norm(minus(centre, start)) ** 2 / mean(moves),
    paths: clients.map(({ path }) => path.map(net => {
      const at = minus(flat(net), centre);
      return [dot(at, along), dot(at, across)];
    })),
  };
}

/** How many numbers a client sends up in a round. */
const traffic = ({ server, protos, settings }) => METHODS[settings.method].prototypes ? CLASSES * (FEATURES + 1)
  : sum(Object.values(server).map(entry => entry.length));

return { METHODS, DOMAINS, begin, moved, play, diverged, drift, traffic, forward, answers, highest };
})();

if (typeof module !== "undefined") module.exports = federation;     // in Node
