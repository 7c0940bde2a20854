"""What every key and mode of a recipe means, in a sentence or two: said here and nowhere else.

An editor shows it beside the key (`schema.py`), a shell beside the completion. A key that the reader knows
and this does not fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping

STAGE = {
    "call": "COMPONENT.METHOD: the endpoint that makes this stage's value.",
    "in": "The stages whose values it takes: one; a list, joined by sample id; or a mapping of parameters, PARAMETER: STAGE or "
    "PARAMETER: {from: STAGE, dispatch: MODE}. Left out: it is a source.",
    "samples": "How many samples it gives in a step, over all its workers, where that is known. A source must say it.",
    "sample_bytes": "About how many bytes one sample of its value has; `show-topology` draws with it.",
    "dispatch": "How its input reaches the workers: a mode, or {mode: MODE, balance: tokens, ...}. Left out: what the decorator says.",
    "execute": "Which workers are called. Left out: what the decorator says.",
    "collect": "What its value is for the stages that take it. Left out: what the decorator says.",
    "sync": "COMPONENT whose weights are sent; COMPONENT.PART calls its method PART in place of `weights`.",
    "to": "COMPONENT that loads them; COMPONENT.METHOD calls METHOD in place of `load_weights`.",
    "every": "It runs in steps n, 2n, ...; steps count from 1.",
    "max_staleness": "How many steps old the weights may be. Left out: `every` - 1, which is strictly on-policy for `every: 1`.",
    "checksum": "Each part that arrives is held against a checksum of what was sent: safer, and slower.",
    "when": "It runs at this time, and not in every step.",
    "after": "Stages that come before it in a step, though it takes nothing from them.",
}

MEANS: Mapping[str, Mapping[str, str]] = {
    "recipe": {
        "defaults": "The files that this recipe is made of, in the order of merging: `base`, `./neighbour`, "
        "`layout@components.NAME.parallel: fsdp`; `_self_` is this file.",
        "name": "Names the folder of its runs. Left out: the name of the file.",
        "seed": "Seeds every generator, together with component, data rank and step.",
        "cluster": "The devices that the job may use. Left out: the least that hold the groups.",
        "groups": "Device groups by name: where components run. Each is one torchrun world.",
        "components": "Components by name: what runs, on which group, in which layout.",
        "pipeline": "Stages by name, in the order of a step: the data flow. A stage's name is the name of what it gives.",
        "run": "How long it runs, and what it writes.",
        "vars": "Values said once and used as ${vars.NAME}.",
    },
    "cluster": {
        "nodes": "How many nodes. Left out: as many as `devices_per_node` lists, or the least that hold the groups.",
        "devices_per_node": "Devices of each node: a count, a list with a count for each node, or one of these by device type, "
        "{cuda: 8, npu: [4, 4]}.",
    },
    "group": {
        "ranks": "How many devices, the next free ones (on cpu: how many processes); or a list of exactly these devices, numbered over "
        "the whole cluster.",
        "device_type": "cuda, npu, mps or cpu. Left out: what this machine has.",
        "visible_devices": 'What the group may use of a node, as CUDA_VISIBLE_DEVICES: "4,5", a list, or UUIDs.',
        "gpus_per_worker": "Neighbouring devices of one node that one process drives.",
        "env": "Environment variables of its workers: a mapping with values, or a list of names to pass through.",
        "colocate": "Another group whose devices it shares, as a world of its own.",
        "program": "Somebody's own script in place of components, or {module: NAME}; it gets torchrun's environment.",
        "args": "Arguments of `program`; {run_dir} in them is the folder of the run.",
        "cwd": "The folder in which `program` runs.",
        "python": "The interpreter of `program`.",
        "service": "`program` serves the other groups: it is terminated when all of them are done, and the run fails if it ends earlier.",
    },
    "component": {
        "_target_": "The dotted path of its class, which derives from meshctl.Component: found beside the recipe, in the working "
        "directory, then among what is installed.",
        "group": "The device group that it runs on, over all of its workers.",
        "parallel": "Its layout: sizes that multiply to the workers of the group, or the name of a component of the same group whose mesh "
        "it takes. Left out: dp over all workers.",
        "args": "Keyword arguments of its constructor, plain data.",
        "frozen": "It has no state to checkpoint and is no target of a sync: a reference, a teacher.",
        "model": "What its model has, held against the layout: the path of a config.json (or of its folder), or numbers. Nothing is "
        "fetched, and nothing else reads it.",
    },
    "model": {
        "config": "The path of a config.json, or of the folder that holds one: as Hugging Face writes it, read as data.",
        "num_heads": "Attention heads; tp and ulysses split them.",
        "num_kv_heads": "Heads of keys and values, where there are fewer.",
        "hidden_size": "The width of a layer; tp splits it.",
        "vocab_size": "The rows of the embedding; tp splits them.",
        "num_layers": "Layers, which pp and vpp share out.",
        "num_experts": "Experts of a layer, which ep spreads.",
        "sequence_length": "The longest sequence in tokens, which cp, ulysses and sequence_parallel split.",
    },
    "parallel": {
        "dp_size": "Copies of the model, gradients averaged (outside of fsdp: HSDP). Left out: what the other sizes leave.",
        "fsdp_size": "Ranks over which parameters, gradients and optimizer state are split.",
        "tp_size": "Ranks over which each layer is split (tensor parallel).",
        "pp_size": "Stages of layers, one behind the other (pipeline parallel).",
        "cp_size": "Ranks over which each sequence is split (context parallel).",
        "ulysses_size": "Ranks over which each sequence is split by heads (Ulysses); carved out of dp x fsdp.",
        "ep_size": "Ranks over which the experts are spread, carved out of a pipeline stage.",
        "etp_size": "Ranks over which each expert is split.",
        "ep_fsdp_size": "Ranks over which the experts' parameters are split. Left out: what ep and etp leave.",
        "vpp_size": "Virtual pipeline stages of each pp rank; needs `pp_size`.",
        "sequence_parallel": "Split activations between layers along tp; needs `tp_size`.",
        "order": "All dims, outermost first, in place of [pp, dp, fsdp, cp, tp].",
    },
    "stage": STAGE,
    "call": STAGE,
    "sync": STAGE,
    "dispatch": {
        "mode": "How the input is shared out. Left out: what the decorator says.",
        "balance": "`tokens`: even out tokens in place of sample counts.",
        "home": "An earlier stage of the same group: each sample goes to the data rank that made it there.",
        "allow_empty": "With fewer samples than shares, some workers get an empty batch. Else that is an error.",
        "split_groups": "Samples of one `group_id` may go to different workers.",
        "equal_counts": "With `balance: tokens`: the shares also have equally many samples (or whole groups), give or take one.",
    },
    "input": {
        "from": "The stage, or the list of stages, that this parameter takes.",
        "dispatch": "How this input reaches the workers, where it differs from the stage's.",
    },
    "run": {
        "steps": "It ends after so many steps. Left out: with the data.",
        "epochs": "How often the data begins anew.",
        "dir": "The folder of all runs; this one is in NAME/TIME below it.",
        "checkpoint": "When a checkpoint is written; false for never.",
        "grace": "Seconds that workers have to end by themselves when the run stops.",
        "patience": "Seconds that a worker waits for another before it ends the run with an error that names it; 0: for ever.",
        "show": "Metrics that the display shows, as STAGE.NAME.",
        "record": "Routes whose values are kept on disk for a replay, as SOURCE -> TARGET, or SOURCE for all of its routes.",
    },
    "checkpoint": {
        "every": "Steps between two checkpoints; 0: only at the end.",
        "keep": "How many are kept, the newest.",
    },
}

DEVICE_TYPES = {
    "cuda": "NVIDIA GPUs; `gpu` is the same",
    "npu": "Ascend NPUs",
    "mps": "Apple GPUs",
    "cpu": "processes without a device",
}
DISPATCH = {
    "slice_dp": "each data rank gets its share; its tp, cp, ulysses and pp peers get the same samples",
    "slice": "each worker gets its own share",
    "all": "every worker gets everything",
}
EXECUTE = {
    "all": "every worker is called",
    "first": "the first worker alone is called",
    "peer": "each producer speaks to its even share of the workers",
}
COLLECT = {
    "flatten": "one batch of what all data ranks give, in sample order",
    "mean": "the mean over data ranks, weighted by samples",
    "sum": "the sum over data ranks",
    "first": "what data rank 0 gives",
    "last_pp_first": "what the first rank of the last pipeline stage gives",
    "none": "the list of what every worker gives",
    "last_pp": "the list of what the ranks of the last pipeline stage give",
}
WHEN = {
    "start": "once, before the first step",
    "end": "once, after the last step",
    "checkpoint": "whenever a checkpoint is written",
}
BALANCE = {"tokens": "even out the tokens of the shares"}
AUTO = "what the other sizes leave"
DEFAULTS = {"_self_": "where this file stands among those that it includes", "base": "what most runs want"}
