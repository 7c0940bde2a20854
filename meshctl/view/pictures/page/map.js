/* The map: kinds of nodes, folded to one node or open to a page of them, and on each node its devices, processes and workers.

   A worker is a tile: its rank over the letters of its components. Colocated groups are one under the other, idle devices are empty. */

const KINDS = 12, NODES_AT_ONCE = 64, WORKERS_AT_ONCE = 512, UNFOLDED = 160, ROW = 8;   /* UNFOLDED: workers of a job that is shown whole */
const BROUGHT = 8, FOLLOWED = 4096, BINS = 160;   /* nodes shown for the sake of marked workers, workers looked at for that; the strip */

const tiles = [];   /* every worker that is drawn now: {element, tag, words, group, rank, home} */
const kinds = facts.nodes.map((kind) => ({...kind, count: kind.nodes.reduce((sum, [start, stop]) => sum + stop - start, 0), at: 0}));
for (const kind of kinds) kind.open = kinds.reduce((sum, other) => sum + other.count * perNode(other), 0) <= UNFOLDED;

/* Pools */

/** The name of the pool of a node; pools are consecutive nodes. */
function poolOf(node) {
  for (const [name, count] of facts.cluster.pools ?? []) {
    if (node < count) return name;
    node -= count;
  }
  return undefined;
}

/* Nodes of a kind */

function groupsOn(kind) {
  return new Set([...kind.cells.flatMap((cell) => cell.groups), ...kind.processes.map(([group]) => group)]);
}

function workersOn(kind, node) {
  const here = groupsOn(kind);
  const groups = facts.groups.filter((group) => here.has(group.name));
  return groups.flatMap(({name}) => topology.groups.get(name).on(node).map((worker) => ({group: name, ...worker})));
}

/** The approximate number of tiles of a node. */
function perNode(kind) {
  const devices = kind.cells.map((cell) => Math.max(1, (cell.devices[1] - cell.devices[0]) * Math.max(1, cell.groups.length)));
  return [...devices, ...kind.processes.map(([, count]) => count)].reduce((sum, count) => sum + count, 0);
}

const atOnce = (kind) => Math.max(1, Math.min(kind.count, NODES_AT_ONCE, Math.floor(WORKERS_AT_ONCE / Math.max(1, perNode(kind)))));

/** The `index`-th node of a kind, and back. */
function nodeAt(kind, index) {
  for (const [start, stop] of kind.nodes) {
    if (index < stop - start) return start + index;
    index -= stop - start;
  }
  return -1;
}
function indexOf(kind, node) {
  let before = 0;
  for (const [start, stop] of kind.nodes) {
    if (start <= node && node < stop) return before + node - start;
    before += stop - start;
  }
  return -1;
}

/** The nodes of a kind that are drawn: its page, or the chosen node and some nodes with marked workers. */
function shownNodes(kind) {
  if (kind.open) {
    const first = kind.at - kind.at % atOnce(kind);
    return Array.from({length: Math.min(atOnce(kind), kind.count - first)}, (_, index) => nodeAt(kind, first + index));
  }
  const nodes = new Set([nodeAt(kind, kind.at)]);
  for (const node of markedNodes()) {
    if (nodes.size >= BROUGHT) break;
    if (indexOf(kind, node) >= 0) nodes.add(node);
  }
  return [...nodes].sort((one, other) => one - other);
}

/** The nodes of the workers that a selected dim or route marks. */
function markedNodes() {
  if (!state.chosen || !state.mark.length || state.mark[0] === "all") return [];
  const {group, ranks} = marked(state.chosen), found = new Set();
  for (let index = 0; index < Math.min(ranks.count, FOLLOWED); index++) found.add(topology.groups.get(group).where(ranks.at(index)).node);
  return [...found];
}

function showNode(node) {
  const kind = kinds.find((one) => indexOf(one, node) >= 0);
  if (kind) Object.assign(kind, {at: indexOf(kind, node), wanted: true});
  buildMap();
}

/** Draws the map again if the selected worker or its marked peers are on other nodes. */
function follow() {
  if (state.chosen) {
    const {node} = topology.placed(state.chosen), kind = kinds.find((one) => indexOf(one, node) >= 0);
    Object.assign(kind, {at: indexOf(kind, node), wanted: true});
  }
  if (kinds.length > KINDS || kinds.some((kind) => kind.count > 1)) keepingFocus(find("#kinds"), buildMap);
}

const tileOf = (worker) => tiles.find((one) => one.home === "map" && same(one, worker))?.element;

/* Building */

function buildMap() {
  forget("map");
  const left = kinds.length - KINDS;
  fill(find("#kinds"), ...kinds.slice(0, KINDS).map(kindCard), ...kinds.slice(KINDS).filter((kind) => kind.wanted).map(kindCard),
    left > 0 && make("p", {class: "note"}, `and ${many(left, "more kind")} of nodes: go to one of their workers by its name`));
  buildStrip();
  paint();
}

function kindCard(kind) {
  const runs = kind.nodes.slice(0, 4).map(span).join(", ") + (kind.nodes.length > 4 ? ", …" : "");
  const title = kind.count === 1 ? `Node ${runs}` : `Nodes ${runs}`;
  const grid = make("div", {class: "nodes", role: "grid", "aria-label": title}, ...shownNodes(kind).map((node) => nodeCard(kind, node)));
  grid.querySelector(".tile")?.setAttribute("tabindex", "0");
  return make("div", {class: kind.count > 1 ? "kind folds" : "kind"}, kind.count > 1 && kindBar(kind, title), grid);
}

/** The title of a kind, its number of nodes, and its controls: previous, a number, next, fold or unfold. */
function kindBar(kind, title) {
  const by = kind.open ? atOnce(kind) : 1, first = kind.at - kind.at % by;
  const go = (index) => {
    kind.at = Math.max(0, Math.min(kind.count - 1, index));
    keepingFocus(find("#kinds"), buildMap);
  };
  const step = (word, sign, index) => button(sign, () => go(index),
    {"aria-label": `${word}${by > 1 ? ` ${by}` : ""} of ${title}`, disabled: index < 0 || index >= kind.count});
  const number = make("input", {
    type: "number", "aria-label": `Node, of ${title}`, min: kind.nodes[0][0], max: kind.nodes.at(-1)[1] - 1, value: nodeAt(kind, first),
    on: {change: () => {
      const index = indexOf(kind, Number(number.value));
      if (index >= 0) return go(index);
      number.value = nodeAt(kind, first);
      return announce(`${title} has no such node`);
    }},
  });
  const toggle = kind.open ? "Fold" : `Show ${by < kind.count && atOnce(kind) < kind.count ? `${atOnce(kind)} at once` : "all"}`;
  const fold = button(toggle, () => {
    kind.open = !kind.open;
    keepingFocus(find("#kinds"), buildMap);
  }, {id: `fold-${kinds.indexOf(kind)}`, "aria-expanded": String(kind.open), "aria-label": `${toggle}, ${title}`});
  const steps = by < kind.count ? [step("Previous", "‹", first - by), number, step("Next", "›", first + by)] : [];
  return make("div", {class: "kind-bar"}, make("h3", {}, title), make("span", {class: "muted"}, `${digitsOf(kind.count)} alike`),
    make("span", {class: "steps"}, ...steps, fold));
}

function nodeCard(kind, node) {
  const workers = workersOn(kind, node), types = [...new Set(kind.cells.map((cell) => cell.device_type))];
  const processes = workers.filter((worker) => worker.device < 0);
  return make("div", {class: "node", role: "rowgroup", "aria-label": `node ${node}`, "data-node": node},
    make("h3", {"aria-hidden": "true"}, [`node ${digitsOf(node)}`, poolOf(node)].filter(Boolean).join(" · ")),
    ...types.flatMap((type) => deviceBands(kind, node, type, workers)),
    processes.length > 0 && band(Math.min(ROW, processes.length), "cpu processes",
      [processes.map((worker) => tile(worker, `node ${node}, cpu`))]),
    !types.length && !processes.length && make("p", {class: "note"}, "nothing here"));
}

/** Rows of tiles with a heading. */
function band(columns, word, rows) {
  const made = make("div", {class: "band", role: "none"}, word && make("span", {class: "of", "aria-hidden": "true"}, word),
    ...rows.map((row) => make("div", {role: "row"}, ...row)));
  made.style.setProperty("--columns", columns);
  return made;
}

/** The devices of one type on a node, eight in a row, or in longer rows that do not split a worker. */
function deviceBands(kind, node, type, workers) {
  const cells = kind.cells.filter((cell) => cell.device_type === type), total = Math.max(...cells.map((cell) => cell.devices[1]));
  const each = ({group}) => topology.groups.get(group).gpus_per_worker;
  const mine = workers.filter((worker) => worker.device >= 0 && topology.groups.get(worker.group).device_type === type);
  const torn = mine.some((worker) => Math.floor(worker.device / ROW) !== Math.floor((worker.device + each(worker) - 1) / ROW));
  const wide = torn ? total : Math.min(total, ROW), bands = [];
  for (let start = 0; start < total; start += wide) {
    const there = ({device, count}) => device < start + wide && device + count > start;
    const rows = levels(cells, mine.map((worker) => ({...worker, count: each(worker)})).filter(there), there);
    bands.push(band(wide, start ? "" : type, rows.map((row) => row.map((part) => devicePart(node, type, part, start, wide)))));
  }
  return bands;
}

/** Colocated groups one under the other, idle devices in the first row. */
function levels(cells, workers, there) {
  const level = new Map();
  for (const cell of cells) cell.groups.forEach((group, at) => level.set(group, Math.max(at, level.get(group) ?? 0)));
  const free = cells.filter((cell) => !cell.groups.length);
  const idle = free.map(({devices: [start, stop]}) => ({device: start, count: stop - start})).filter(there);
  const rows = Array.from({length: 1 + Math.max(0, ...level.values())}, (_, at) => workers.filter(({group}) => level.get(group) === at));
  rows[0].push(...idle);
  return rows.filter((row) => row.length).map((row) => row.sort((one, other) => one.device - other.device));
}

/** A worker on its devices, or idle devices, within the row. */
function devicePart(node, type, {group, rank, device, count}, start, wide) {
  const low = Math.max(device, start), high = Math.min(device + count, start + wide), where = `${type} ${span([low, high])}`;
  const made = group === undefined
    ? make("div", {class: "tile idle", role: "gridcell", tabindex: -1, "aria-label": `${where}, idle`}, "idle")
    : tile({group, rank}, `node ${node}, ${where}`);
  made.style.gridColumn = `${low - start + 1} / span ${high - low}`;
  return made;
}

/** A worker: its rank, and on the map its components' letters on their colors, or the number of its process group. */
function tile({group, rank}, where, home = "map") {
  const tag = make("span", {class: "tag", "aria-hidden": "true"});
  const words = [nameOf({group, rank}), where, list(topology.groups.get(group).components.slice(0, RANKS))].filter(Boolean).join(", ");
  const element = make("div", {class: "tile", role: "gridcell", tabindex: -1, "data-worker": nameOf({group, rank}), "aria-label": words},
    make("span", {class: rank > 9999 ? "rank long" : "rank"}, String(rank)), home === "map" && stripes(group, rank), tag);
  tiles.push({element, tag, words, group, rank, home});
  return element;
}

function stripes(group, rank) {
  const [name, dim] = state.color, components = topology.componentsOf(group), {mark} = topology.groups.get(group);
  const stripe = (text, words = "") => make("span", {class: words}, text);
  if (dim) {
    const {group: home, grid} = topology.components.get(name), number = home === group && grid.groupOf(rank, dim);
    return make("span", {class: "stripes"}, home === group ? stripe(String(number), `h${number % HUES}`) : stripe(""));
  }
  const room = 3 * topology.groups.get(group).gpus_per_worker;
  const fits = components.length > room ? components.slice(0, room - 1) : components, left = components.length - fits.length;
  return make("span", {class: "stripes"}, ...fits.map(({letter, hue}) => stripe(letter, `h${hue}`)),
    left > 0 && stripe(`+${left}`, "rest"), mark && stripe(mark.letter, `h${mark.hue}`));
}

function forget(home) {
  for (let at = tiles.length - 1; at >= 0; at--) if (tiles[at].home === home) tiles.splice(at, 1);
}

/** The whole cluster in one line, for the mouse. Its content is available as text elsewhere. */
function buildStrip() {
  if (topology.nodes < 2 * ROW || kinds.every((kind) => kind.count === shownNodes(kind).length)) return fill(find("#strip"));
  const bins = Math.min(topology.nodes, BINS), at = (node) => Math.floor(node * bins / topology.nodes);
  const peers = new Set(markedNodes().map(at)), self = state.chosen ? at(topology.placed(state.chosen).node) : -1;
  const color = (bin) => {
    const kind = topology.kindOf(Math.floor(bin * topology.nodes / bins)), [group] = groupsOn(kind);
    const first = group !== undefined && (topology.componentsOf(group)[0] ?? topology.groups.get(group).mark);
    return first ? `f${first.hue}` : "f";
  };
  const click = ({currentTarget, clientX}) => {
    const {left, width} = currentTarget.getBoundingClientRect();
    showNode(Math.min(topology.nodes - 1, Math.floor((clientX - left) / width * topology.nodes)));
  };
  const bin = (_, index) => make("span", {class: `${color(index)} ${index === self ? "self" : peers.has(index) ? "peer" : ""}`});
  const title = "The whole cluster: click to go there";
  return fill(find("#strip"), make("div", {class: "bins", "aria-hidden": "true", title, on: {click}}, ...Array.from({length: bins}, bin)));
}

/* Marks: the workers related to the selected or previewed one */

/** The workers that a mark selects for a worker: {group, ranks, word}. */
function marked(worker) {
  const [what, one, two] = state.mark, component = what === "dim" && topology.components.get(one);
  if (component?.group === worker.group) return {group: worker.group, ranks: component.grid.peers(worker.rank, two), word: two};
  const route = what === "route" && topology.routesOf(worker, state.samples).find(({at, role}) => at === one && role === two);
  if (route) return {group: route.partner, ranks: route.ranks, word: two === "sends" ? "receives" : "sends"};
  return {group: worker.group, ranks: EMPTY, word: ""};
}

/** The relation of a drawn worker to the selected or previewed one, in a word; empty if there is none. */
function relations(worker) {
  const [what, name] = state.mark, component = what === "all" && topology.components.get(name);
  if (component?.group === worker.group) {
    const {grid} = component, mine = digits(worker.rank, grid.shape);
    return ({group, rank}) => {
      if (group !== worker.group) return "";
      const differ = digits(rank, grid.shape).flatMap((index, at) => (index === mine[at] ? [] : [grid.dims[at]]));
      return differ.length === 1 ? differ[0] : "";
    };
  }
  const {group: home, ranks, word} = marked(worker);
  return ({group, rank}) => (group === home && ranks.has(rank) ? word : "");
}

function paint() {
  const worker = watched(), relation = worker && relations(worker);
  for (const {element, tag, words, ...one} of tiles) {
    const self = same(one, worker), word = worker && !self ? relation(one) : "";
    element.dataset.role = !worker ? "" : self ? "self" : word ? "peer" : "other";
    element.setAttribute("aria-selected", String(same(one, state.chosen)));
    element.setAttribute("aria-label", word ? `${words}, ${word} of ${nameOf(worker)}` : words);
    tag.textContent = word;
  }
  paintPipeline(worker);
}

function paintPipeline(worker) {
  const routes = worker ? topology.routesOf(worker, state.samples).filter(({ranks}) => ranks.count) : [];
  const numbers = new Set(routes.map(({at}) => String(at))), mine = new Set(worker ? topology.groups.get(worker.group).components : []);
  for (const picture of document.querySelectorAll(".picture")) {
    picture.classList.toggle("lit", Boolean(worker));
    for (const line of picture.querySelectorAll("[data-route]")) line.classList.toggle("on", numbers.has(line.dataset.route));
    for (const box of picture.querySelectorAll("[data-component]")) box.classList.toggle("mine", mine.has(box.dataset.component));
  }
}

/* Mouse and keyboard */

function hover(worker) {
  const next = worker && !same(worker, state.chosen) ? worker : null;
  if (same(next, state.hovered) || (!next && !state.hovered)) return;
  state.hovered = next;
  show();
}

/** Previews the worker under the mouse, at most once in each frame. */
let waiting = null;
function glance(worker) {
  if (!waiting) requestAnimationFrame(() => { const {worker} = waiting; waiting = null; hover(worker); });
  waiting = {worker};
}

function listen(area) {
  const workerOf = (event) => topology.worker(event.target.closest?.(".tile")?.dataset.worker);
  area.addEventListener("pointerover", (event) => { if (event.pointerType !== "touch") glance(workerOf(event)); });
  area.addEventListener("pointerleave", () => glance(null));
  area.addEventListener("click", (event) => { if (workerOf(event)) choose(workerOf(event)); });
  area.addEventListener("focusin", ({target}) => {
    if (!target.matches(".tile")) return;
    for (const other of target.closest("[role=grid]").querySelectorAll(".tile[tabindex='0']")) other.tabIndex = -1;
    target.tabIndex = 0;
    hover(target.matches(":focus-visible") ? topology.worker(target.dataset.worker) : null);
  });
  area.addEventListener("focusout", ({relatedTarget: next}) => { if (!find("#worker").contains(next)) hover(null); });
  area.addEventListener("keydown", (event) => {
    if (event.target.matches(".tile") && !event.altKey && !event.metaKey) press(event, area);
  });
}

function press(event, area) {
  const {target, key} = event;
  if (key === "Enter" || key === " ") {
    event.preventDefault();
    const worker = topology.worker(target.dataset.worker);
    if (worker) choose(worker);
  } else if (key === "PageUp" || key === "PageDown") {
    event.preventDefault();
    turn(target, key === "PageDown" ? 1 : -1);
  } else {
    const next = neighbour(target, key, event.ctrlKey, [...area.querySelectorAll(".tile")]);
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.scrollIntoView({block: "nearest", inline: "nearest"});
  }
}

/** The tile to which a key moves. */
function neighbour(tile, key, far, all) {
  const row = far ? all : [...tile.closest("[role=row]").querySelectorAll(".tile")];
  switch (key) {
    case "ArrowLeft": return all[all.indexOf(tile) - 1];
    case "ArrowRight": return all[all.indexOf(tile) + 1];
    case "Home": return row[0];
    case "End": return row.at(-1);
    case "ArrowUp": return beyond(tile, all, (from, to) => from.top - to.bottom);
    case "ArrowDown": return beyond(tile, all, (from, to) => to.top - from.bottom);
    default: return null;
  }
}

/** The tile of the nearest row on one side that is nearest to the left edge of this one. */
function beyond(tile, all, away) {
  const from = tile.getBoundingClientRect();
  const measured = (other) => {
    const to = other.getBoundingClientRect();
    return {other, y: away(from, to), x: Math.abs(to.left - from.left)};
  };
  const there = all.map(measured).filter(({y}) => y > -3), near = Math.min(...there.map(({y}) => y));
  return there.filter(({y}) => y < near + 8).sort((one, two) => one.x - two.x)[0]?.other;
}

/** The same position on the next or the previous node. */
function turn(tile, by) {
  const node = Number(tile.closest("[data-node]")?.dataset.node) + by;
  if (!kinds.some((kind) => indexOf(kind, node) >= 0)) return;
  const place = [...tile.closest("[data-node]").querySelectorAll(".tile")].indexOf(tile);
  if (!find(`[data-node="${node}"]`)) showNode(node);
  const there = [...find(`[data-node="${node}"]`).querySelectorAll(".tile")];
  there[Math.min(place, there.length - 1)]?.focus();
}
