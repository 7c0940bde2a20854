/* The page: its content, its selection, and its reactions. It derives nothing itself but asks mesh.js.

     map.js      nodes with their workers and marks     pipeline.js   stages and routes     worker.js   one worker
   Names come from recipes and are only set as text. `build...` makes elements; `paint` marks existing ones, on every hover. */

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const find = (selector) => document.querySelector(selector);
const facts = read("facts-json");
const topology = new Topology(facts);

const WARNINGS = 6, GROUPS = 12, COMPONENTS = 24, ROUTES = 200;   /* shown at first */
const RANKS = 8, BLOCKS = 4;                        /* ranks of a process group, or of a row or column of a mesh; and tables of a mesh */

const state = {
  chosen: null,      /* the selected worker, {group, rank} */
  hovered: null,     /* the previewed worker */
  mark: [],          /* the relation that the map marks: [all, COMPONENT], [dim, COMPONENT, DIM] or [route, NUMBER, ROLE] */
  color: [],        /* [COMPONENT, DIM], or none for components */
  samples: facts.stages.find((stage) => stage.samples)?.samples ?? 2 * Math.max(1, ...facts.components.map(({data_size: size}) => size)),
};
const watched = () => state.hovered ?? state.chosen;

/* Words */

const digitsOf = (number) => number.toLocaleString("en");
const many = (count, thing) => `${digitsOf(count)} ${thing}${count === 1 ? "" : "s"}`;
const list = (words) => (words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words.join(""));
const span = ([start, stop]) => (stop - start === 1 ? digitsOf(start) : `${digitsOf(start)}–${digitsOf(stop - 1)}`);
/** Bytes with decimal units: 8.19 MB. */
function bytesOf(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  while (count >= 999.5 && units.length > 1) { count /= 1000; units.shift(); }
  return `${Number(count.toPrecision(3))} ${units[0]}`;
}
/** A mode; of a user's mode `module:NAME`, its name. */
const modeName = (mode) => (mode.includes(":") ? `by ${mode.split(":")[1]}` : mode);
const nameOf = ({group, rank}) => `${group}:${rank}`;
const same = (one, other) => Boolean(one && other && one.group === other.group && one.rank === other.rank);
const REACH = {inside: "inside a node", some: "some cross nodes", all: "crosses nodes"};

/** The bytes of a component on each rank, or why they are unknown; empty if its class declares none. */
function memoryOf(name) {
  const found = facts.memory?.components.find(({component}) => component === name);
  if (!found || found.unknown) return found ? `Memory unknown: ${found.unknown}` : "";
  const parts = [["weights", found.weights], ["gradients", found.gradients], [found.optimizer_name, found.optimizer], ["sync", found.sync]];
  const words = parts.filter(([, count]) => count !== 0).map(([part, count]) => (count === null ? `unknown ${part}` : `${bytesOf(count)} ${part}`));
  const total = bytesOf(parts.reduce((sum, [, count]) => sum + (count ?? 0), 0));
  return `${words.join(" + ")}${words.length > 1 ? ` ${found.optimizer === null ? ">" : "="} ${total}` : ""} on each rank`;
}
/** The bytes of all models on a device of a group; empty if none is known. */
function deviceMemoryOf(group) {
  const found = facts.memory?.devices.filter(({groups}) => groups.includes(group)) ?? [];
  if (!found.length) return "";
  const most = found.reduce((one, other) => (other.total > one.total ? other : one)), {total, device_memory: memory} = most;
  const words = `${most.is_complete ? "" : "at least "}${bytesOf(total)}${memory ? ` of ${bytesOf(memory)}` : ""}`;
  return `${words} ${most.device_type === "cpu" ? "in each process" : "on each device"}`;
}

/* Elements */

/** An element with attributes by name, listeners `on` events, and children as text or elements; false ones are left out. */
function make(tag, {on = {}, ...attributes} = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
  made.append(...children.filter((child) => child || child === 0));
  return made;
}
const fill = (element, ...children) => element.replaceChildren(...children.filter(Boolean));
const button = (words, click, attributes = {}) => make("button", {type: "button", ...attributes, on: {click}}, words);
const row = (head, cells) => make("tr", {}, make("th", {scope: "row"}, head), ...cells.map((cell) => make("td", {}, cell)));
const above = (word) => make("th", {scope: "col"}, word);
const heads = (words, attributes = {}) => make("thead", attributes, make("tr", {}, ...words.map(above)));
const letter = (component) => make("span", {class: `letter h${component.hue}`, "aria-hidden": "true"}, component.letter);
const chip = (component) => make("span", {class: "chip"}, letter(component), make("span", {}, component.name));

/** A message, with text in backticks as code. */
const quoted = (text) => text.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part));

/* The head: name, counts, warnings, groups */

function buildHead() {
  fill(find("#name"), facts.name);
  const devices = new Map();
  for (const kind of kinds) {
    for (const {device_type: type, devices: [start, stop]} of kind.cells) {
      devices.set(type, (devices.get(type) ?? 0) + kind.count * (stop - start));
    }
  }
  const words = [
    `${many(facts.workers, "worker")} in ${many(facts.groups.length, "group")}`, many(Math.max(1, topology.nodes), "node"),
    ...[...devices].map(([type, count]) => many(count, `${type} device`)), ...(facts.idle ? [`${digitsOf(facts.idle)} idle`] : []),
  ];
  fill(find("#facts"), `${words.join(" · ")} · plan `, make("code", {}, facts.digest));
  if (facts.groups.length) find("#where").placeholder = `${facts.groups[0].name}:0`;
  buildWarnings();
  buildGroups();
}

function buildWarnings(all = false) {
  const section = find("#warnings"), shown = all ? facts.warnings : facts.warnings.slice(0, WARNINGS);
  const left = facts.warnings.length - shown.length;
  section.hidden = !facts.warnings.length;
  fill(find("#warnings-title"), many(facts.warnings.length, "warning"));
  fill(section.querySelector("ul"), ...shown.map(({code, message, where, help}) => make("li", {},
    make("span", {class: "code"}, code), " ", ...quoted(message), " ",
    where && make("code", {class: "muted where"}, where), " ", help && make("span", {class: "help"}, ...quoted(help)))),
  left > 0 && make("li", {}, button(`Show ${digitsOf(left)} more`, () => buildWarnings(true))));
}

function buildGroups(all = false) {
  const shown = all ? facts.groups : facts.groups.slice(0, GROUPS), left = facts.groups.length - shown.length;
  const more = left > 0 && make("tr", {}, make("td", {colspan: 4}, button(`Show ${many(left, "more group")}`, () => buildGroups(true))));
  fill(find("#groups"), heads(["Group", "Runs", "Workers", "Where"]), make("tbody", {}, ...shown.map(groupRow), more));
}

function groupRow(group) {
  const where = [
    `${group.device_type} on ${many(group.nodes, "node")}${group.pools ? ` of ${group.pools.join(", ")}` : ""}`,
    group.gpus_per_worker > 1 && `${group.gpus_per_worker} devices each`,
    group.visible_devices.length && `sees ${group.visible_devices.join(", ")}`,
    group.colocate && `on the devices of ${group.colocate}`,
    group.python && `python ${group.python}`,
    deviceMemoryOf(group.name),
  ];
  const components = topology.componentsOf(group.name).slice(0, COMPONENTS);
  const program = () => make("span", {class: "chip"}, letter(topology.groups.get(group.name).mark), make("code", {}, group.program));
  const runs = make("div", {class: "chips"}, ...(components.length ? components.map(chip) : [program()]));
  const made = row(group.name, [runs, digitsOf(group.workers), where.filter(Boolean).join(", ")]);
  made.children[2].className = "workers";
  return made;
}

/* Components: the body of one is made when it is opened */

function buildComponents(all = false) {
  const components = [...topology.components.values()], shown = all ? components : components.slice(0, COMPONENTS);
  const left = components.length - shown.length;
  find("#components").hidden = !components.length;
  forget("mesh");
  fill(find("#components .list"), ...shown.map((component) => componentCard(component, components.length <= 4)),
    left > 0 && button(`Show ${many(left, "more component")}`, () => buildComponents(true)));
}

function componentCard(component, open) {
  const {name, layout, group, frozen} = component, body = make("div", {class: "body"});
  const toggle = () => { if (card.open && !body.children.length) buildBody(component, body); };
  const card = make("details", {class: "component", "data-component": name, open, on: {toggle}}, make("summary", {},
    letter(component), make("span", {class: "name"}, name), make("span", {}, layout),
    frozen && make("span", {class: "muted"}, "frozen"), make("span", {class: "group"}, `on ${group}`)), body);
  return card;
}

function buildBody({name, target, grid, group, process_groups: groups, data_size: data}, body) {
  const memory = memoryOf(name), stages = grid.stages > 1 ? ` · ${grid.stages} pipeline stages` : "";
  const table = make("table", {}, heads(["Dim", "Process groups", "Stride", "First group", "Reach"]), make("tbody", {},
    ...groups.map(({dim, count, size, stride, example, ...there}) => row(dim, [
      `${digitsOf(count)} × ${many(size, "rank")}`, stride === null ? "uneven" : digitsOf(stride),
      make("span", {class: "mono"}, example.join(" ") + (example.length < size ? " …" : "")), REACH[there.reach],
    ]))));
  fill(body, make("p", {}, make("code", {}, target), make("span", {class: "muted"}, ` · ${many(data, "data rank")}${stages}`)),
    memory && make("p", {class: "memory"}, ...quoted(memory)),
    groups.length > 0 && make("div", {class: "scroll", role: "region", tabindex: 0, "aria-label": `Process groups of ${name}`}, table),
    make("div", {class: "meshes"}, ...meshTables(grid, group)));
  paint();
}

/** The first indices of a dim and the last, with -1 for those between. */
function few(size, most) {
  const all = (count) => Array.from({length: count}, (_, index) => index);
  return size <= most ? all(size) : [...all(most - 2), -1, size - 1];
}

/** A table for each combination of the outer dims; the last two dims are its rows and columns. */
function meshTables(grid, group) {
  const dims = grid.dims.filter((dim) => grid.size(dim) > 1);
  const outer = dims.slice(0, -2), [rows, columns] = dims.length > 1 ? dims.slice(-2) : ["", dims[0]], sizes = grid.sizesOf(outer);
  return few(product(sizes), BLOCKS).map((block) => {
    if (block < 0) return make("span", {class: "more"}, "…");
    const at = Object.fromEntries(digits(block, sizes).map((index, number) => [outer[number], index]));
    return meshTable(grid, group, at, rows, columns);
  });
}

function meshTable(grid, group, at, rows, columns) {
  const across = few(columns ? grid.size(columns) : 1, RANKS), down = few(rows ? grid.size(rows) : 1, RANKS);
  const word = (dim, index) => (index < 0 ? "…" : dim ? `${dim} ${index}` : "");
  const words = Object.entries(at).map(([dim, index]) => word(dim, index)).join(", ");
  const cell = (down, across) => {
    if (down < 0 || across < 0) return make("td", {class: "more", role: "gridcell", "aria-label": "folded"}, "…");
    const rank = grid.rank({...at, ...(rows && {[rows]: down}), ...(columns && {[columns]: across})});
    const where = [words, word(rows, down), word(columns, across)].filter(Boolean).join(", ");
    return make("td", {role: "none"}, tile({group, rank}, where, "mesh"));
  };
  const head = (scope, role, text) => make("th", {scope, role}, text);
  const table = make("table", {class: "mesh", role: "grid", "aria-label": [`ranks of ${group}`, words].filter(Boolean).join(", ")},
    words && make("caption", {}, words),
    make("thead", {role: "rowgroup"}, make("tr", {role: "row"}, make("td", {role: "gridcell"}),
      ...across.map((index) => head("col", "columnheader", word(columns, index))))),
    make("tbody", {role: "rowgroup"}, ...down.map((index) => make("tr", {role: "row"},
      head("row", "rowheader", word(rows, index)), ...across.map((other) => cell(index, other))))));
  table.querySelector(".tile")?.setAttribute("tabindex", "0");
  return table;
}

/* Choosing */

/** The first mark of a worker: all dims of the component of its group that has the most. */
function usualMark(group) {
  const components = topology.componentsOf(group), most = Math.max(0, ...components.map(({process_groups: groups}) => groups.length));
  if (!most) return [];
  const {name, process_groups: groups} = components.find((component) => component.process_groups.length === most);
  return most > 1 ? ["all", name] : ["dim", name, groups[0].dim];
}

/** Whether the mark applies to a worker. */
function suits(worker) {
  const [what, one, role] = state.mark;
  if (what === "route") return topology.routesOf(worker, state.samples).some((found) => found.at === one && found.role === role);
  return topology.components.get(one)?.group === worker.group;
}

function show() {
  const worker = watched();
  if (worker && !suits(worker)) state.mark = usualMark(worker.group);
  keepingFocus(find("#worker"), buildWorker);
  paint();
}

/** Builds a part again and keeps the focus on the same element, if it still exists. */
function keepingFocus(part, build) {
  const known = ({id, dataset, ariaLabel, value, textContent}) => id || dataset.worker || ariaLabel || value || textContent;
  const focused = part.contains(document.activeElement) && known(document.activeElement);
  build();
  if (focused) [...part.querySelectorAll("button, input, .tile")].find((element) => known(element) === focused)?.focus();
}

/** Selects a worker, or none; `go` moves the keyboard to it. */
function choose(worker, {go = false, quiet = false} = {}) {
  state.chosen = worker;
  state.hovered = null;
  if (worker && !suits(worker)) state.mark = usualMark(worker.group);
  const hash = worker ? `#${encodeURIComponent(worker.group)}:${worker.rank}` : "";
  history.replaceState(null, "", hash || location.pathname + location.search);
  follow();
  show();
  if (go && worker) tileOf(worker)?.focus();
  if (!quiet) announce(worker ? announcement(worker) : "Nothing selected");
}

function mark(value) {
  state.mark = value;
  follow();
  paint();
}

function announcement(worker) {
  const {node, local} = topology.placed(worker), {device_type: type} = topology.groups.get(worker.group);
  const dims = ({grid, process_groups: groups}) => groups.map(({dim}) => `${dim} ${grid.index(worker.rank, dim)} of ${grid.size(dim)}`);
  const meshes = topology.componentsOf(worker.group).filter(({process_groups: groups}) => groups.length);
  return [
    `${worker.group} ${worker.rank} selected, node ${node}`,
    local.length ? `${type} ${span([local[0], local.at(-1) + 1])}` : "a cpu process",
    ...meshes.map((component) => `${component.name}: ${dims(component).join(", ")}`),
  ].join(". ");
}

function announce(words) { find("#status").textContent = words; }

function jump(event) {
  event.preventDefault();
  const field = find("#where"), wanted = field.value.trim(), worker = topology.worker(wanted);
  const group = topology.groups.get(wanted.replace(/:[^:]*$/, ""));
  const groups = list(facts.groups.slice(0, RANKS).map(({name}) => name));
  const help = group ? `${group.name} has the ranks 0 to ${group.workers - 1}` : `groups are ${groups}`;
  field.setAttribute("aria-invalid", String(!worker));
  find("#refused").textContent = worker ? "" : `There is no ${wanted || "worker without a name"}; ${help}`;
  if (worker) choose(worker, {go: true}); else announce(find("#refused").textContent);
}

function fromAddress() {
  let name = location.hash.slice(1);
  try { name = decodeURIComponent(name); } catch { /* a broken escape is a name like any other */ }
  const worker = topology.worker(name);
  if (worker && !same(worker, state.chosen)) choose(worker);
}

function buildColors() {
  const dims = [...topology.components.values()].filter(({process_groups: groups}) => groups.length).slice(0, 4 * COMPONENTS);
  const option = (name, dim) => make("option", {value: JSON.stringify([name, dim])}, `${name}: ${dim} groups`);
  const field = find("#color");
  fill(field, make("option", {value: "[]"}, "component"),
    ...dims.map(({name, process_groups: groups}) => make("optgroup", {label: name}, ...groups.map(({dim}) => option(name, dim)))));
  field.closest(".pick").hidden = !dims.length;
  field.addEventListener("change", () => { state.color = JSON.parse(field.value); buildMap(); });
}

const THEMES = ["auto", "light", "dark"];
function theme(value) {
  if (value === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = value;
  fill(find("#theme"), make("span", {class: "muted"}, "Theme "), value);
  try { localStorage.setItem("meshctl-theme", value); } catch { /* a file may not remember */ }
  return value;
}

function buildTheme() {
  let shade = "auto";
  try { shade = localStorage.getItem("meshctl-theme") ?? shade; } catch { /* as above */ }
  shade = theme(THEMES.includes(shade) ? shade : "auto");
  find("#theme").addEventListener("click", () => { shade = theme(THEMES[(THEMES.indexOf(shade) + 1) % THEMES.length]); });
}

/** The first selection: the address wins over what the page was made with. */
function first() {
  const {select, component, dim, node, samples} = read("first-json");
  const home = component || facts.components.find(({process_groups: groups}) => groups.some((one) => one.dim === dim))?.name;
  if (samples) state.samples = samples;
  if (dim && home) {
    state.color = [home, dim];
    find("#color").value = JSON.stringify(state.color);
  }
  if (component) find(`.component[data-component="${CSS.escape(component)}"]`)?.setAttribute("open", "");
  if (node === null) buildMap(); else showNode(node);
  show();
  fromAddress();
  if (!state.chosen && topology.worker(select)) choose(topology.worker(select), {quiet: true});
  if (state.chosen && dim && topology.components.get(home)?.group === state.chosen.group) {
    mark(["dim", home, dim]);
    show();
  }
}

function begin() {
  buildTheme();
  buildHead();
  buildColors();
  buildPipeline();
  buildComponents();
  first();
  listen(find("#kinds"));
  listen(find("#components"));
  find("#jump").addEventListener("submit", jump);
  find("#worker").addEventListener("focusout", ({relatedTarget: next, currentTarget: panel}) => {
    if (next && !panel.contains(next)) hover(null);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.chosen) choose(null); });
  addEventListener("hashchange", fromAddress);
}
