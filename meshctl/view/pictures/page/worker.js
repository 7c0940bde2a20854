/* The panel of one worker: its location, its coordinate, peers and samples in each component, and its routes.

   Whatever can be shown in the map has a radio button: all dims of a component, one dim, or one end of a route. */

function buildWorker() {
  const worker = watched(), panel = find("#worker");
  if (!worker) {
    const help = "Point at a worker to preview it, select it to keep it: its process groups, peers, samples and routes.";
    const words = facts.workers ? help : "There are no workers.";
    return fill(panel, make("h2", {id: "worker-title"}, "Worker"), make("p", {class: "muted"}, words));
  }
  const {program} = topology.groups.get(worker.group);
  const title = make("h2", {id: "worker-title"}, make("span", {class: "unseen"}, "Worker "), make("span", {class: "mono"}, nameOf(worker)));
  const aside = same(worker, state.chosen) ? button("Clear", () => choose(null)) : make("span", {class: "muted"}, "preview");
  return fill(panel, make("div", {class: "top"}, title, aside), placeList(worker),
    program ? make("p", {}, "Runs ", make("code", {}, program)) : batchField(), make("div", {id: "answers"}, ...answers(worker)));
}

function placeList(worker) {
  const {jobRank, node, localRank, local, devices} = topology.placed(worker);
  const {device_type: type, visible_devices: visible, gpus_per_worker: each} = topology.groups.get(worker.group);
  const hardware = visible.slice(localRank * each, (localRank + 1) * each);   /* what it calls them itself */
  const pairs = [["job rank", digitsOf(jobRank)], ["node", digitsOf(node)], ["local rank", digitsOf(localRank)]];
  pairs.push(local.length ? [type, span([local[0], local.at(-1) + 1])] : ["on", type]);
  if (local.length && devices[0] !== local[0]) pairs.push(["in cluster", span([devices[0], devices.at(-1) + 1])]);
  if (hardware.length) pairs.push(["hardware", hardware.join(", ")]);
  return make("dl", {class: "where"}, ...pairs.map(([word, value]) => make("div", {}, make("dt", {}, word), make("dd", {}, value))));
}

function batchField() {
  const input = () => {
    state.samples = Math.max(0, Math.floor(Number(field.value)) || 0);
    fill(find("#answers"), ...answers(watched()));
    paint();
  };
  const field = make("input", {type: "number", id: "samples", min: 0, step: 1, value: state.samples, on: {input}});
  return make("p", {class: "batch"}, make("label", {for: "samples"}, "Samples of a batch"), field,
    facts.routes.some(({kind, samples}) => kind === "data" && !samples) && make("span", {class: "note"}, "where the recipe does not give them"));
}

/** The parts that depend on the number of samples. */
function answers(worker) {
  const routes = topology.routesOf(worker, state.samples);
  return [
    ...topology.componentsOf(worker.group).map((component) => componentPart(worker, component)),
    routes.length > 0 && make("h3", {}, "Routes"),
    ...routes.map((route) => routePart(worker, route)),
  ];
}

function radio(value, words) {
  const checked = String(state.mark) === String(value), change = () => mark(value);
  return make("label", {}, make("input", {type: "radio", name: "mark", value: value.join(" "), checked, on: {change}}), words);
}

function componentPart(worker, component) {
  const {grid, name, layout, process_groups: groups} = component, {rank} = worker;
  const rows = groups.map(({dim, ...there}) => row(radio(["dim", name, dim], dim), [
    `${grid.index(rank, dim)} of ${digitsOf(grid.size(dim))}`,
    rankButtons(worker.group, grid.peers(rank, dim), worker, reachOf(worker, grid.peers(rank, dim), there), grid.index(rank, dim) - RANKS / 2),
  ]));
  const all = groups.length > 1 && row(radio(["all", name], "all dims"), ["", ""]);
  return make("div", {}, make("h3", {}, chip(component), make("span", {class: "layout"}, layout)),
    groups.length > 0 && make("table", {}, heads(["Dim", "Index", "Process group"], {class: "unseen"}), make("tbody", {}, all, ...rows)),
    make("p", {class: "note"}, dataPart(grid, rank)));
}

/** Whether these ranks are on several nodes; of very many, whether some process groups are. */
function reachOf({group}, ranks, there) {
  if (there.reach !== "some" || ranks.count > FOLLOWED) return REACH[there.reach];
  return REACH[new Set(some(ranks, FOLLOWED).map((rank) => topology.placed({group, rank}).node)).size > 1 ? "all" : "inside"];
}

function dataPart(grid, rank) {
  const [start, stop] = grid.slice(state.samples, rank), stages = grid.stagesOf(rank);
  const samples = `of ${many(state.samples, "sample")} ${start < stop ? span([start, stop]) : "none"}`;
  const held = grid.stages > 1 ? `, pipeline stage${stages.length > 1 ? "s" : ""} ${list(stages.map(String))} of ${grid.stages}` : "";
  return `data rank ${grid.dataRank(rank)} of ${digitsOf(grid.sizes.data)}: ${samples}${held}`;
}

/** Buttons for some of a set of ranks, from about the `first` on. */
function rankButtons(group, ranks, self, aside = "", first = 0) {
  const shown = some(ranks, RANKS, Math.max(0, Math.min(first, ranks.count - RANKS))), left = ranks.count - shown.length;
  const go = (rank) => button(String(rank), () => choose({group, rank}, {go: true}), {"aria-label": `Go to ${nameOf({group, rank})}`});
  return make("div", {class: "ranks"},
    ...shown.map((rank) => (same({group, rank}, self) ? make("span", {class: "me"}, String(rank)) : go(rank))),
    left > 0 && make("span", {class: "muted"}, `and ${digitsOf(left)} more`), aside && make("span", {class: "reach"}, aside));
}

/* Routes */

function routePart(worker, route) {
  const {link: {flow, weights}, at, role, partner, ranks} = route;
  const name = weights ? `${flow.name}: ${flow.giver} to ${flow.taker}` : flow.name;
  const label = make("span", {class: "muted"}, `${role === "sends" ? "to" : "from"} ${partner}`), way = wayTo(worker, route);
  return make("div", {class: "route"}, radio(["route", at, role], `${role} `), make("span", {class: "name"}, name),
    make("p", {class: "note"}, role === "sends" ? sentBy(route, worker) : receivedBy(route)),
    ranks.count > 0 && make("div", {class: "ranks"}, label, ...rankButtons(partner, ranks, worker, way).childNodes));
}

/** The transports to these ranks, the longest one for weights; for very many, the transports of the route. */
function wayTo(worker, {link: {flow, weights}, partner, ranks}) {
  if (ranks.count > FOLLOWED) return waysOf(flow);
  const others = some(ranks, FOLLOWED).map((rank) => ({group: partner, rank})), node = topology.placed(worker).node;
  if (others.every((other) => same(other, worker))) return OVER.process;
  const [own, other] = [worker.group, partner].map((name) => topology.groups.get(name));   /* of a route in process too */
  const kept = own === other || !(own.restartable || other.restartable);
  const direct = kept && own.device_type === other.device_type && DIRECT.includes(own.device_type);
  const across = own.python === other.python ? OVER.devices : OVER.devices_or_nodes;
  const [near, far] = direct ? [OVER.device, across] : [OVER.node, OVER.nodes];
  const ways = new Set(others.map((other) => (topology.placed(other).node !== node ? far : same(other, worker) && !weights ? OVER.process : near)));
  return weights ? (ways.has(far) ? far : near) : [OVER.process, near, far].filter((way) => ways.has(way)).join(", ");
}

const BY = {tokens: "the tokens of the batch decide which", home: "those that were made there"};
const USER = ({userMode}) => `samples; ${modeName(userMode)} decides which`;
const VALUES = {mean: "its part of the mean", sum: "its part of the sum", none: "its value", last_pp: "its value"};

/** `samples 4–7, 12–15 of 16`; empty if there are none. */
function part({samples, batch, link}) {
  const runs = samples.slice(0, 3).map(span).join(", ") + (samples.length > 3 ? ", …" : "");
  return runs && `samples ${runs} of ${digitsOf(batch)}${link.flow.samples ? "" : ", if the batch has them"}`;
}

function sentBy(route, {rank}) {
  const {link, active} = route, {flow, producer} = link;
  if (link.weights) return "its shards, to the ranks with overlapping ones";
  if (link.userMode) return USER(link);
  if (active && !link.samples) return VALUES[flow.collect] ?? "the value";
  if (active) return [part(route) || "nothing of so few samples", BY[link.depends]].filter(Boolean).join("; ");
  if (link.producers.count === 1) return `nothing: rank ${link.producers.at(0)} is the producer`;
  if (flow.collect === "last_pp") return "nothing: the last pipeline stage is the producer";
  return `nothing: rank ${producer.representative(producer.dataRank(rank))} is the leader of its data rank`;
}

function receivedBy(route) {
  const {link, called} = route;
  if (link.weights) return "the shards that it needs";
  if (link.userMode) return USER(link);
  if (!called) return "nothing: only rank 0 is called";
  if (!link.samples) return ["none", "last_pp"].includes(link.flow.collect) ? "a list of all values" : "the value, joined from all parts";
  return link.depends ? `samples; ${BY[link.depends]}` : part(route) || "nothing of so few samples";
}
