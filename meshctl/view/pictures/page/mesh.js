/* The arithmetic of meshctl's topology package, for the data of one topology.

   Every question about one rank costs the number of dims. A set of ranks is never listed: it is {count, at(i), has(rank)}.
   The tests hold each answer against Python's. */
const DATA = ["data", "ulysses"];
const EXPERT = ["ep_fsdp", "ep", "etp"];
const product = (numbers) => numbers.reduce((made, number) => made * number, 1);

/** The share `part` of an even, contiguous split of 0 .. total - 1, as [start, stop); the first `total mod parts` have one more. */
function share(total, parts, part) {
  const each = Math.floor(total / parts), more = total % parts;
  const start = part * each + Math.min(part, more);
  return [start, start + each + (part < more ? 1 : 0)];
}

/** The part whose share contains `index`. */
function shareOf(total, parts, index) {
  const each = Math.floor(total / parts), more = total % parts;
  return index < more * (each + 1) ? Math.floor(index / (each + 1)) : more + Math.floor((index - more * (each + 1)) / each);
}

/** A number as digits, the last fastest, and back. */
function digits(number, sizes) {
  const found = [];
  for (let at = sizes.length - 1; at >= 0; at--) {
    found[at] = number % sizes[at];
    number = Math.floor(number / sizes[at]);
  }
  return found;
}
const named = (dims, indices) => Object.fromEntries(dims.map((dim, at) => [dim, indices[at]]));
const number = (found, sizes) => found.reduce((made, digit, at) => made * sizes[at] + digit, 0);

/** Named dims over the ranks of a group, and the same ranks by the dims of its views. */
class Mesh {
  constructor(stored) {
    this.dims = stored.mesh_dim_names;
    this.shape = stored.shape;
    this.world = product(stored.shape);
    this.sizes = Object.fromEntries(this.dims.map((dim, at) => [dim, this.shape[at]]));
    const flat = this.size("dp") * this.size("fsdp"), stage = this.world / this.size("pp");
    Object.assign(this.sizes, {ulysses: stored.ulysses_size ?? 1, ep: stored.ep_size ?? 1, etp: stored.etp_size ?? 1});
    this.sizes.data = flat / this.sizes.ulysses;
    this.sizes.ep_fsdp = stage / (this.sizes.ep * this.sizes.etp);
    this.stages = this.size("pp") * (stored.vpp_size ?? 1);
    this.stageDims = this.dims.filter((dim) => dim !== "pp");
    const kept = this.dims.filter((dim) => dim !== "dp" && dim !== "fsdp");
    const first = this.dims.findIndex((dim) => dim === "dp" || dim === "fsdp");
    const outer = kept.filter((dim) => this.dims.indexOf(dim) < first);
    this.views = {
      own: this.dims,
      data: [...outer, ...DATA, ...kept.filter((dim) => !outer.includes(dim))],
      expert: [...this.dims.filter((dim) => dim === "pp"), ...EXPERT],
    };
  }

  size(dim) { return this.sizes[dim] ?? 1; }
  view(dim) { return DATA.includes(dim) ? "data" : EXPERT.includes(dim) ? "expert" : "own"; }
  sizesOf(dims) { return dims.map((dim) => this.size(dim)); }

  /** dim -> index, in its own dims and in those of its views. */
  coordinate(rank) {
    const own = named(this.dims, digits(rank, this.shape));
    const flat = (own.dp ?? 0) * this.size("fsdp") + (own.fsdp ?? 0);
    const stage = number(this.stageDims.map((dim) => own[dim]), this.sizesOf(this.stageDims));
    const expert = named(EXPERT, digits(stage, this.sizesOf(EXPERT)));
    return {...own, ...expert, data: Math.floor(flat / this.sizes.ulysses), ulysses: flat % this.sizes.ulysses};
  }

  index(rank, dim) { return this.coordinate(rank)[dim] ?? 0; }
  dataRank(rank) { return this.coordinate(rank).data; }

  /** The rank at a coordinate in the dims of one view; dims that it leaves out are 0. */
  rank(coordinate, view = "own") {
    const own = {...coordinate};
    if (view === "data") {
      const flat = (own.data ?? 0) * this.sizes.ulysses + (own.ulysses ?? 0);
      own.dp = Math.floor(flat / this.size("fsdp"));
      own.fsdp = flat % this.size("fsdp");
    }
    if (view === "expert") {
      const stage = number(EXPERT.map((dim) => own[dim] ?? 0), this.sizesOf(EXPERT));
      Object.assign(own, named(this.stageDims, digits(stage, this.sizesOf(this.stageDims))));
    }
    return number(this.dims.map((dim) => own[dim] ?? 0), this.shape);
  }

  /** The ranks of the process group of `rank` along `dim`. */
  peers(rank, dim) {
    const at = this.coordinate(rank), mine = this.groupOf(rank, dim), view = this.view(dim);
    return {
      count: this.size(dim),
      at: (index) => this.rank({...at, [dim]: index}, view),
      has: (other) => this.groupOf(other, dim) === mine,
    };
  }

  /** The number of the process group along `dim`, in the order in which all ranks create them. */
  groupOf(rank, dim) {
    const at = this.coordinate(rank), others = this.views[this.view(dim)].filter((other) => other !== dim);
    return number(others.map((other) => at[other]), this.sizesOf(others));
  }

  /** The samples of a rank, of `total`, as [start, stop). */
  slice(total, rank) { return share(total, this.sizes.data, this.dataRank(rank)); }

  /** The leader of a data rank. */
  representative(dataRank) { return this.rank({data: dataRank, pp: this.size("pp") - 1}, "data"); }

  /** The pipeline stages that a rank holds. */
  stagesOf(rank) {
    const found = [];
    for (let stage = this.index(rank, "pp"); stage < this.stages; stage += this.size("pp")) found.push(stage);
    return found;
  }
}

/* Routes: producers, consumers and samples. */

/** The producer ranks of a stage, in the order in which their parts are joined. */
function producersOf(mesh, collect, execute) {
  const one = (rank) => ({count: 1, at: () => rank, number: (other) => (other === rank ? 0 : -1)});
  const last = mesh.size("pp") - 1, sizes = mesh.sizesOf(mesh.stageDims);
  const lastAt = (index) => mesh.rank({...named(mesh.stageDims, digits(index, sizes)), pp: last});
  if (execute === "first") return one(0);
  switch (collect) {
    case "first": return one(mesh.representative(0));
    case "last_pp_first": return one(lastAt(0));
    case "none": return {count: mesh.world, at: (index) => index, number: (rank) => rank};
    case "last_pp": {
      const of = (rank) => number(mesh.stageDims.map((dim) => mesh.index(rank, dim)), sizes);
      return {count: product(sizes), at: lastAt, number: (rank) => (mesh.index(rank, "pp") === last ? of(rank) : -1)};
    }
    default: {
      const of = (rank) => (mesh.representative(mesh.dataRank(rank)) === rank ? mesh.dataRank(rank) : -1);
      return {count: mesh.sizes.data, at: (index) => mesh.representative(index), number: of};
    }
  }
}

/** The parts of a batch in a dispatch mode: their number, the part of a rank, and the ranks of a part. */
function partsOf(mesh, mode) {
  if (mode === "slice") return {count: mesh.world, of: (rank) => rank, each: 1, at: (part) => part};
  if (mode === "all") return {count: 1, of: () => 0, each: mesh.world, at: (part, index) => index};
  const others = mesh.views.data.filter((dim) => dim !== "data"), sizes = mesh.sizesOf(others);
  const at = (part, index) => mesh.rank({data: part, ...named(others, digits(index, sizes))}, "data");
  return {count: mesh.sizes.data, of: (rank) => mesh.dataRank(rank), each: product(sizes), at};
}

const EMPTY = {count: 0, at: () => -1, has: () => false};
const everyone = (mesh) => ({count: mesh.world, at: (index) => index, has: () => true});
const listed = (ranks) => ({count: ranks.length, at: (index) => ranks[index], has: (rank) => ranks.includes(rank)});

/** The workers of a producer with `execute: peer`, as [start, stop). */
function peerSpan(workers, producer, count) {
  return workers >= count ? share(workers, count, producer) : [producer % workers, producer % workers + 1];
}

/** One route of the topology, with the meshes of its producer and its consumer. */
class Link {
  #known = new Map();

  constructor(flow, producer, consumer, called, execute) {
    Object.assign(this, {flow, producer, consumer, execute});
    this.weights = flow.kind === "weights";
    /* A mode that a user supplies, `module:NAME`: only the run decides about its samples. */
    this.userMode = [flow.collect, called, flow.dispatch.mode, execute].find((mode) => mode.includes(":")) ?? "";
    this.unknown = this.weights || this.userMode !== "";
    this.producers = this.unknown ? {...everyone(producer), number: (rank) => rank} : producersOf(producer, flow.collect, called);
    this.parts = partsOf(consumer, flow.dispatch.mode);
    /* Whether samples move; those of a first value if the recipe gives their number. */
    this.samples = !this.unknown && (flow.samples > 0 || flow.collect === "flatten");
    /* What decides about the shares; empty if they are known. */
    this.depends = flow.dispatch.balance || flow.dispatch.home ? flow.dispatch.balance || "home" : "";
  }

  /** What a rank of the producer sends of a batch of `total`: {active, samples, ranks}. */
  sent(rank, total) {
    const me = this.producers.number(rank);
    if (me < 0) return {active: false, samples: [], ranks: EMPTY};
    const mine = share(total, this.producers.count, me);
    const samples = this.samples && mine[0] < mine[1] ? [mine] : [];
    return {active: true, samples, ranks: this.samples && !samples.length ? EMPTY : this.#consumers(me, mine, total)};
  }

  #consumers(me, [start, stop], total) {
    if (this.unknown) return everyone(this.consumer);
    if (this.execute === "first") return listed([0]);
    if (this.execute === "peer") return this.#consumersOfPeer(me, stop - start);
    if (!this.samples || this.depends) return everyone(this.consumer);
    const {count, each, at, of} = this.parts, low = shareOf(total, count, start), high = shareOf(total, count, stop - 1) + 1;
    const has = (rank) => low <= of(rank) && of(rank) < high;
    return {count: (high - low) * each, at: (index) => at(low + Math.floor(index / each), index % each), has};
  }

  #consumersOfPeer(me, length) {
    const [start, stop] = peerSpan(this.consumer.world, me, this.producers.count), present = this.#present(me);
    if (!this.samples || this.depends || present.size <= length) {
      return {count: stop - start, at: (index) => start + index, has: (rank) => start <= rank && rank < stop};
    }
    const ranks = [];
    for (let rank = start; rank < stop; rank++) if (present.get(this.parts.of(rank)) < length) ranks.push(rank);
    return listed(ranks);
  }

  /** The parts of the workers of a producer, in order, each with its number. */
  #present(producer) {
    if (!this.#known.has(producer)) {
      const [start, stop] = peerSpan(this.consumer.world, producer, this.producers.count), found = new Set();
      for (let rank = start; rank < stop; rank++) found.add(this.parts.of(rank));
      this.#known.set(producer, new Map([...found].sort((a, b) => a - b).map((part, number) => [part, number])));
    }
    return this.#known.get(producer);
  }

  /** What a rank of the consumer receives of a batch of `total`: {called, samples, ranks}. */
  received(rank, total) {
    const {count} = this.producers;
    if (this.execute === "first" && rank && !this.unknown) return {called: false, samples: [], ranks: EMPTY};
    if (this.unknown) return {called: true, samples: [], ranks: everyone(this.producer)};
    if (this.execute === "peer") return this.#receivedAsPeer(rank, total);
    const active = this.samples ? Math.min(count, total) : count;   /* a producer without samples sends nothing */
    const isActive = (other) => this.producers.number(other) >= 0 && this.producers.number(other) < active;
    const all = {count: active, at: this.producers.at, has: isActive};
    if (!this.samples || this.depends) return {called: true, samples: [], ranks: all};
    const mine = this.execute === "first" ? [0, total] : share(total, this.parts.count, this.parts.of(rank));
    if (mine[0] === mine[1]) return {called: true, samples: [], ranks: EMPTY};
    const low = shareOf(total, count, mine[0]), high = shareOf(total, count, mine[1] - 1) + 1;
    const has = (other) => low <= this.producers.number(other) && this.producers.number(other) < high;
    return {called: true, samples: [mine], ranks: {count: high - low, at: (index) => this.producers.at(low + index), has}};
  }

  #receivedAsPeer(rank, total) {
    const {count} = this.producers, {world} = this.consumer, samples = [], producers = [];
    const first = world >= count ? shareOf(world, count, rank) : rank;
    for (let producer = first; producer < count; producer += world >= count ? count : world) {
      const [start, stop] = share(total, count, producer), present = this.#present(producer);
      const [low, high] = share(stop - start, present.size, present.get(this.parts.of(rank)));
      if (this.samples && !this.depends && low < high) samples.push([start + low, start + high]);
      if (!this.samples || (this.depends ? start < stop : low < high)) producers.push(this.producers.at(producer));
    }
    return {called: true, samples, ranks: listed(producers)};
  }
}

/* Placement: runs of ranks on neighboring, equal nodes. */

class Group {
  constructor(placed, firstJobRank) {
    Object.assign(this, placed);
    this.firstJobRank = firstJobRank;
  }

  has(rank) { return Number.isInteger(rank) && rank >= 0 && rank < this.workers; }

  /** {node, device, localRank}; the device is the worker's first, as the node numbers them, -1 on cpu. */
  where(rank) {
    let low = 0, high = this.stretches.length - 1;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.stretches[middle].first_rank <= rank) low = middle; else high = middle - 1;
    }
    const run = this.stretches[low], offset = rank - run.first_rank, index = offset % run.each;
    const node = run.first_node + Math.floor(offset / run.each);
    let localRank = index;
    for (const before of this.stretches.slice(0, low)) localRank += ranksThere(before, node);
    return {node, device: run.first_device < 0 ? -1 : run.first_device + index * this.gpus_per_worker, localRank};
  }

  /** [{rank, device}] of the workers on a node, by rank. */
  on(node) {
    return this.stretches.flatMap((run) => {
      const first = run.first_rank + (node - run.first_node) * run.each;
      return Array.from({length: ranksThere(run, node)}, (_, index) => (
        {rank: first + index, device: run.first_device < 0 ? -1 : run.first_device + index * this.gpus_per_worker}));
    });
  }
}

function ranksThere(run, node) {
  const before = (node - run.first_node) * run.each;
  return before < 0 ? 0 : Math.max(0, Math.min(run.each, run.ranks - before));
}

/** a, b, ... z, aa, ab, ...: the letters of groups that run a program. */
function smallLetters(number) {
  const last = String.fromCharCode(97 + number % 26);
  return number < 26 ? last : smallLetters(Math.floor(number / 26) - 1) + last;
}

/** The whole topology. */
class Topology {
  constructor(facts) {
    this.facts = facts;
    let jobRank = 0;
    this.groups = new Map(facts.groups.map((group) => [group.name, new Group(group, (jobRank += group.workers) - group.workers)]));
    const known = (component, at) => ({...component, hue: at % HUES, grid: new Mesh(component.mesh)});
    this.components = new Map(facts.components.map((component, at) => [component.name, known(component, at)]));
    [...this.groups.values()].filter((group) => !group.components.length).forEach((group, at) => {
      group.mark = {letter: smallLetters(at), hue: (this.components.size + at) % HUES};
    });
    this.stages = new Map(facts.stages.map((stage) => [stage.name, stage]));
    this.links = facts.routes.map((flow) => new Link(flow, this.components.get(flow.giver).grid, this.components.get(flow.taker).grid,
      this.stages.get(flow.source).execute, this.stages.get(flow.target).execute));
    this.nodes = Math.max(0, ...facts.nodes.flatMap((kind) => kind.nodes.map(([, stop]) => stop)));
  }

  /** {group, rank} of `train:3`; null if the worker does not exist. */
  worker(name) {
    const [, group, rank] = /^([^]*):(\d+)$/.exec(name ?? "") ?? [];
    return this.groups.get(group)?.has(Number(rank)) ? {group, rank: Number(rank)} : null;
  }

  componentsOf(group) { return this.groups.get(group).components.map((name) => this.components.get(name)); }

  kindOf(node) { return this.facts.nodes.find((kind) => kind.nodes.some(([start, stop]) => start <= node && node < stop)); }

  /** The number in the cluster of the first device of a type on a node. */
  firstDevice(type, node) {
    let found = 0;
    for (const kind of this.facts.nodes) {
      const each = Math.max(0, ...kind.cells.filter((cell) => cell.device_type === type).map((cell) => cell.devices[1]));
      for (const [start, stop] of kind.nodes) found += each * Math.max(0, Math.min(stop, node) - start);
    }
    return found;
  }

  /** The location of a worker: {jobRank, node, localRank, local: devices on its node, devices: in the cluster}. */
  placed({group, rank}) {
    const placed = this.groups.get(group), {node, device, localRank} = placed.where(rank);
    const local = device < 0 ? [] : Array.from({length: placed.gpus_per_worker}, (_, index) => device + index);
    const first = local.length ? this.firstDevice(placed.device_type, node) : 0;
    return {jobRank: placed.firstJobRank + rank, node, localRank, local, devices: local.map((number) => first + number)};
  }

  /** The ends of routes at a worker: [{link, at, role: "sends" | "receives", ...}]. */
  routesOf({group, rank}, total) {
    return this.links.flatMap((link, at) => {
      const producer = this.components.get(link.flow.giver).group, consumer = this.components.get(link.flow.taker).group;
      const batch = link.flow.samples || total, found = [];
      if (producer === group) found.push({link, at, batch, role: "sends", partner: consumer, ...link.sent(rank, batch)});
      if (consumer === group) found.push({link, at, batch, role: "receives", partner: producer, ...link.received(rank, batch)});
      return found;
    });
  }
}

/** At most `most` of a set of ranks, from the `first` on, in order. */
function some(ranks, most, first = 0) {
  return Array.from({length: Math.min(ranks.count - first, most)}, (_, index) => ranks.at(first + index)).sort((a, b) => a - b);
}

/** One worker as plain data, for the console and for tests. */
function describe(topology, name, total, most = 64) {
  const worker = topology.worker(name);
  const {jobRank, node, localRank, devices} = topology.placed(worker);
  const peers = (grid, dim) => ({group: grid.groupOf(worker.rank, dim), ranks: some(grid.peers(worker.rank, dim), most)});
  const meshes = topology.componentsOf(worker.group).map(({name: component, grid, process_groups: groups}) => ({
    component, coordinate: grid.coordinate(worker.rank), dataRank: grid.dataRank(worker.rank), slice: grid.slice(total, worker.rank),
    stages: grid.stagesOf(worker.rank), peers: Object.fromEntries(groups.map(({dim}) => [dim, peers(grid, dim)])),
  }));
  const routes = topology.routesOf(worker, total).map(({link, role, samples, ranks}) => ({
    route: link.flow.name, role, samples, count: ranks.count, ranks: some(ranks, most),
    agrees: some(ranks, most).every((rank) => ranks.has(rank)),
  }));
  return {...worker, jobRank, node, localRank, devices, meshes, routes};
}
