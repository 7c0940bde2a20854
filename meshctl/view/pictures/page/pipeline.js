/* The pipeline: a lane for each group, a row for each stage in the order in which workers run them, a line for each route.

     train                      rollout
     +-----------+              +------------+
     | metrics   |<--+          | rollouts   |
     |  in 4->2  |   +----------|            |
     +-----------+              +------------+

   The browser lays the boxes out. A route leaves its stage sideways, runs down beside the lane of its consumer and enters at its own
   input, so it crosses no box. A sync has two boxes because two groups run it. */

const LANES = 5, STAGES = 48, TRACK = 11, CORNER = 6;   /* more groups share the last lane; of a route: its distance to the next, its corners */
const WHEN = {start: "at the start", end: "at the end", checkpoint: "at checkpoints"};

function buildPipeline() {
  find("#pipeline").hidden = !facts.stages.length;
  find("#pipeline details").hidden = !facts.routes.length;
  const left = facts.routes.length - ROUTES;
  fill(find("#routes"), heads(["Route", "From", "To", "Ranks", "Collect", "Dispatch", "Bytes a step", "By way of"]),
    make("tbody", {}, ...facts.routes.slice(0, ROUTES).map(routeRow), left > 0 && row(`and ${many(left, "more route")}`, [])));
  if (!facts.stages.length) return;
  const narrow = matchMedia("(max-width: 640px)"), picture = find("#pipeline .picture");
  const build = () => { drawPipeline(picture, narrow.matches); paintPipeline(watched()); };
  narrow.addEventListener("change", build);
  new ResizeObserver(() => drawWires(picture)).observe(picture);
  matchMedia("print").addEventListener("change", () => drawWires(picture));
  build();
}

/** The numbers of producer and consumer ranks; a user's mode leaves them to the run. */
const ranksOf = ({speakers, hearers}) => [speakers, hearers].map((count) => (count ? digitsOf(count) : "?")).join(" → ");
/** The transports of a route: several if its links differ. */
const waysOf = ({ways}) => ways.map((way) => OVER[way]).join(", ");
const routeBytes = ({bytes}) => (bytes ? digitsOf(bytes) : "");
const dispatchOf = ({dispatch: {mode, balance, home}}) => [modeName(mode), balance && `by ${balance}`, home && `home of ${home}`].filter(Boolean).join(" ");

/** What happens to weights on their way, as the text of the topology says it. */
const reshardingOf = ({giver, taker}) => {
  const [from, to] = [giver, taker].map((name) => topology.components.get(name).layout);
  return from === to ? "as it is" : "re-sharded";
};

function routeRow(route) {
  const {name, giver, taker, kind, collect} = route;
  const moves = kind === "weights" ? ["weights", reshardingOf(route)] : [modeName(collect), dispatchOf(route)];
  return row(name, [giver, taker, ranksOf(route), ...moves, routeBytes(route), waysOf(route)]);
}

/** Boxes with their lane and row, and the routes between them with their tracks. In a narrow window all groups share a lane. */
function layOut(narrow) {
  const stages = [...facts.stages].sort((one, other) => one.after - other.after).slice(0, STAGES);
  const groupOf = ({component, to}) => [component, to].filter(Boolean).map((name) => topology.components.get(name).group);
  const used = new Set(stages.flatMap(groupOf)), groups = facts.groups.filter(({name}) => used.has(name));
  const laneOf = (name) => (narrow ? 0 : Math.min(groups.findIndex((group) => group.name === topology.components.get(name).group), LANES - 1));
  const boxes = [];
  let height = 0;
  for (const stage of stages) {
    const inputs = facts.routes.map((route, number) => ({...route, number})).filter(({target}) => target === stage.name);
    const halves = [{component: stage.component, method: stage.method, kind: "data"}];
    if (stage.to) halves.push({component: stage.to, method: stage.to_method, kind: "weights"});
    const stacked = halves.length > 1 && laneOf(stage.component) === laneOf(stage.to);
    halves.forEach((half, number) => boxes.push({
      ...half, stage, lane: laneOf(half.component), row: height + (stacked ? number : 0), inputs: inputs.filter(({kind}) => kind === half.kind),
    }));
    height += stacked ? 2 : 1;
  }
  const wires = boxes.flatMap((end) => end.inputs.map((route, entry) => wire(route, boxes, end, entry))).filter(Boolean);
  return {groups, lanes: narrow ? 1 : Math.min(groups.length, LANES), boxes, wires, tracks: assignTracks(wires), left: facts.stages.length - stages.length};
}

function wire(route, boxes, end, entry) {
  const start = boxes.find(({stage, kind}) => stage.name === route.source && kind === "data");
  if (!start) return null;
  const leftward = start.lane > end.lane, ends = [start.row, end.row + (entry + 1) / 1000];
  return {route, start, end, leftward, gap: `${end.lane + leftward} ${leftward}`, low: Math.min(...ends), high: Math.max(...ends)};
}

/** Gives each route a track in the gap beside its consumer's lane: short ones the nearest, those of one stage the same one.
    Returns the number of tracks of each gap. */
function assignTracks(wires) {
  const taken = new Map(), counts = new Map();
  for (const one of [...wires].sort((a, b) => a.high - a.low - (b.high - b.low) || a.route.number - b.route.number)) {
    const meets = (other) => one.low <= other.high && other.low <= one.high && other.route.source !== one.route.source;
    const inTrack = (track) => taken.get(`${one.gap} ${track}`) ?? [];
    one.track = 0;
    while (inTrack(one.track).some(meets)) one.track += 1;
    taken.set(`${one.gap} ${one.track}`, [...inTrack(one.track), one]);
    counts.set(one.gap, Math.max(counts.get(one.gap) ?? 0, one.track + 1));
  }
  return counts;
}

function drawPipeline(picture, narrow) {
  const laid = layOut(narrow), gap = (lane) => 26 + TRACK * ((laid.tracks.get(`${lane} false`) ?? 0) + (laid.tracks.get(`${lane} true`) ?? 0));
  const columns = Array.from({length: laid.lanes}, (_, lane) => `${gap(lane)}px minmax(140px, 232px)`);
  const place = (element, lane, row) => {
    element.style.gridColumn = 2 * lane + 2;
    element.style.gridRow = row;
    return element;
  };
  const lanes = narrow ? [] : Array.from({length: laid.lanes}, (_, lane) => place(laneHead(laid, lane), lane, "1 / -1"));
  picture.style.gridTemplateColumns = `${columns.join(" ")} ${gap(laid.lanes)}px`;
  picture.style.gridTemplateRows = `${narrow ? 0 : 18}px repeat(${Math.max(...laid.boxes.map(({row}) => row)) + 1}, auto)`;
  for (const box of laid.boxes) box.element = place(stageBox(box, narrow), box.lane, box.row + 2);
  picture.setAttribute("aria-label",
    `Pipeline of ${facts.name}: ${many(facts.stages.length, "stage")}, ${many(facts.routes.length, "route")}, listed in the table below`);
  picture.wires = laid.wires;
  fill(picture, ...lanes, ...laid.boxes.map(({element}) => element), document.createElementNS(SVG, "svg"));
  fill(find("#pipeline .left"), laid.left > 0 && `and ${many(laid.left, "more stage")}`);
  drawWires(picture);
}

function laneHead({groups, lanes}, lane) {
  const {name, workers, device_type: type} = groups[lane], sharing = lane === lanes - 1 ? groups.length - lanes : 0;
  return make("div", {class: "lane"}, make("span", {class: "cut name", title: name}, name),
    make("span", {class: "aside"}, sharing ? `and ${many(sharing, "more group")}` : `${digitsOf(workers)} on ${type}`));
}

function stageBox({stage, component, method, inputs, kind}, narrow) {
  const placed = topology.components.get(component), call = `${component}.${method}`;
  const words = kind === "weights" ? [] : [
    stage.samples && many(stage.samples, "sample"), stage.sample_bytes && !stage.samples && `${bytesOf(stage.sample_bytes)} a sample`,
    stage.every > 1 && `every ${stage.every} steps`, WHEN[stage.when], stage.execute !== "all" && `execute ${modeName(stage.execute)}`,
    stage.lag && `${many(stage.lag, "step")} late`, (facts.ends_run ?? []).includes(stage.name) && "ends the run", repeatOf(stage),
  ].filter(Boolean);
  return make("div", {class: "stage", "data-stage": stage.name, "data-component": component},
    make("div", {class: "line"}, letter(placed), make("span", {class: "cut name", title: stage.name}, stage.name),
      make("span", {class: "aside"}, narrow ? placed.group : stage.after)),
    make("div", {class: "cut mono muted", title: call}, call), words.length > 0 && make("div", {class: "muted"}, words.join(" · ")),
    ...inputs.map(inputOf));
}

/** How often a block runs, for the first of its stages. */
function repeatOf({name, block}) {
  const found = (facts.blocks ?? []).find((one) => one.name === block);
  if (!found || facts.stages.find((other) => other.block === block).name !== name) return "";
  if (found.take) {
    const further = ["ahead", "late"].filter((key) => found[key]).map((key) => `, ${key} ${found[key]}`);
    return `takes ${found.take}${further.join("")}`;
  }
  return found.until ? "until it ends" : `${many(found.times, "round")} over ${found.over} by ${found.size}`;
}

function inputOf(route) {
  const {name, source, parameter, kind, collect, bytes} = route, words = parameter ? `${parameter}: ${source}` : source;
  return make("div", {class: "input", "data-input": name},
    make("div", {class: "line"}, make("span", {class: "cut", title: words}, kind === "weights" ? "weights" : words),
      make("span", {class: "aside name"}, ranksOf(route))),
    make("div", {class: "line wraps muted"}, make("span", {}, kind === "weights" ? reshardingOf(route) : `${modeName(collect)}, ${dispatchOf(route)}`),
      make("span", {class: "aside"}, [bytes && bytesOf(bytes), waysOf(route)].filter(Boolean).join(", "))));
}

const SVG = "http://www.w3.org/2000/svg";
function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Draws the routes where the boxes are now. */
function drawWires(picture) {
  const edge = picture.getBoundingClientRect(), on = new Set([...picture.querySelectorAll(".edge.on")].map(({dataset}) => dataset.route));
  const at = (element) => {
    const {left, right, top, height} = element.getBoundingClientRect();
    return {left: left - edge.left, right: right - edge.left, top: top - edge.top, middle: top + height / 2 - edge.top};
  };
  picture.querySelector("svg").replaceChildren(...picture.wires.flatMap(({route: {number, name, kind}, start, end, leftward, track}) => {
    const from = at(start.element), to = at(end.element), input = [...end.element.querySelectorAll(".input")].find(({dataset}) => dataset.input === name);
    const y = at(input).middle, side = leftward ? to.right : to.left, across = side + (15 + TRACK * track) * (leftward ? 1 : -1);
    const line = through(start.lane < end.lane ? from.right : from.left, from.top + 20, across, y, side);
    const lit = on.has(String(number)) ? " on" : "", head = `M${side} ${y}l${leftward ? 7 : -7} -4v8z`;
    return [shape("path", {class: `edge ${kind}${lit}`, "data-route": number, d: line}), shape("path", {class: `head ${kind}${lit}`, "data-route": number, d: head})];
  }));
}

/** A line to `across`, down or up to another height, and on to `end`, with round corners. */
function through(x, top, across, y, end) {
  const down = Math.sign(y - top), round = Math.min(CORNER, Math.abs(y - top) / 2), out = Math.sign(across - x) * round, back = Math.sign(end - across) * round;
  return `M${x} ${top}H${across - out}Q${across} ${top} ${across} ${top + down * round}V${y - down * round}Q${across} ${y} ${across + back} ${y}H${end}`;
}
