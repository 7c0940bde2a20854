"""Every key of a recipe, declared once: its type, default, documentation, and names in other systems.

    Field("grace", Seconds(), default=30.0, doc="Seconds that ...", aliases="grace_period")

The following derive from this table: the reader, the JSON Schema, the documentation of keys, shell
completion, the defaults in `config --origins`, and the suggestions for keys that are misspelt, misplaced or
from another system. A new key needs one `Field` here, one attribute of the class in `model.py` (of `run`: in
`run/settings.py`), and the code that uses it. Rules about several fields are in `reader.py` and `rules/`.
"""

from __future__ import annotations

from meshctl.recipe import device_types, engine_fields
from meshctl.recipe import field_types as types
from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.field_types import (
    MAX_BYTES,
    MAX_SEED,
    MAX_STEPS,
    Boolean,
    Bytes,
    Field,
    Integer,
    Metric,
    Retired,
    Schema,
    Seconds,
    Section,
    Size,
    StepsOrTime,
    Text,
    Texts,
    Window,
    Word,
    Words,
    plain_data,
)
from meshctl.recipe.section_types import (
    CountOrNamed,
    Defaults,
    FirstKey,
    FreeMapping,
    Inputs,
    ModelConfig,
    Named,
    Nested,
    PlainData,
    Script,
)
from meshctl.recipe.tracker_fields import TRACKER_SECTIONS, Trackers
from meshctl.topology.cluster import ACCELERATORS, DEVICE_ALIASES
from meshctl.topology.sizes import MAY_BE_AUTO, SIZES

DRAFT = "https://json-schema.org/draft/2020-12/schema"

# Words that values may be

DEVICE_TYPES = {
    "cuda": "NVIDIA GPUs; `gpu` is the same",
    "npu": "Ascend NPUs",
    "mps": "Apple GPUs",
    "cpu": "processes without a device",
}
DISPATCH_MODES = {
    "slice_dp": "each data rank receives its share; its tp, cp, ulysses and pp peers receive the same",
    "slice": "each worker receives its own share",
    "all": "every worker receives everything",
}
EXECUTE_MODES = {
    "all": "every worker is called",
    "first": "only the first worker is called",
    "peer": "each producer sends to its even share of the workers",
}
COLLECT_MODES = {
    "flatten": "one batch of the values of all data ranks, in sample order",
    "mean": "the mean over data ranks, weighted by samples",
    "sum": "the sum over data ranks",
    "first": "the value of data rank 0",
    "last_pp_first": "the value of the first rank of the last pipeline stage",
    "none": "the list of every worker's value",
    "last_pp": "the list of the values of the ranks of the last pipeline stage",
}
TIMES = {
    "start": "once, before the first step",
    "end": "once, after the last step",
    "checkpoint": "whenever a checkpoint is written",
}
LOG_LEVELS = {
    "debug": "every record",
    "info": "what happens, and what follows",
    "warning": "warnings and errors",
    "error": "errors only",
}
CHECKS = {
    "basic": "checks that cost nothing that can be measured",
    "all": "also checks that take time: all borrowed memory, equal values of peers, the calls of collectives",
}
BALANCE = {"tokens": "even out the tokens of the shares"}
ON_NAN = {
    "stop": "the run ends with exit code 5",
    "ignore": "the run goes on, after one warning for each metric",
}
ACCEPTED = {
    "seed": "another seed",
    "args": "other arguments of components with state and of sources",
    "components": "components whose state is lost, or that begin without one",
    "pipeline": "other sources",
}
METRIC_MODES = {"min": "the least value is the best", "max": "the greatest value is the best"}

DISPATCH_MODE = Word(DISPATCH_MODES, "a dispatch mode", "MC520")

# Sections. A section follows the sections that it contains.


def _size(key: str, doc: str, aliases: str) -> Field:
    assert key in SIZES
    return Field(key, Size(key in MAY_BE_AUTO), doc, aliases=aliases)


# A table is easier to read with each field in a few lines.
# fmt: off
PARALLEL = Section("parallel", "`parallel`", (
    _size("pp_size",
        doc="Pipeline-parallel size: number of stages into which the layers are split.",
        aliases="pipeline_model_parallel_size pipeline_parallel_size pipeline_parallel_degree "
            "pp_degree num_pipeline_stages pp"),
    _size("dp_size",
        doc="Data-parallel size: number of model replicas, whose gradients are averaged (outside of "
            "fsdp: HSDP). Default: the ranks that the other sizes leave.",
        aliases="data_parallel_size data_parallel_degree dp ddp ddp_size dp_replicate "
            "dp_replicate_size data_parallel_replicate_degree num_replicas replicate replicate_size"),
    _size("fsdp_size",
        doc="Number of ranks that shard parameters, gradients and optimizer state.",
        aliases="dp_shard dp_shard_size data_parallel_shard_degree fsdp shard shard_size "
            "sharding_world_size"),
    _size("cp_size",
        doc="Context-parallel size: number of ranks that split each sequence.",
        aliases="context_parallel_size context_parallel_degree cp_degree cp"),
    _size("tp_size",
        doc="Tensor-parallel size: number of ranks that split each layer.",
        aliases="tensor_model_parallel_size tensor_parallel_size tensor_parallel_degree tp_degree tp"),
    _size("ulysses_size",
        doc="Number of ranks that split each sequence by heads (Ulysses); carved out of dp x fsdp.",
        aliases="sp_size sp ulysses ulysses_degree ulysses_sp_size ulysses_parallel_size "
            "ulysses_sequence_parallel_size sequence_parallel_size"),
    _size("ep_size",
        doc="Expert-parallel size: number of ranks that share the experts; carved out of a pipeline "
            "stage.",
        aliases="expert_model_parallel_size expert_parallel_size expert_parallel_degree ep_degree ep"),
    _size("etp_size",
        doc="Number of ranks that split each expert.",
        aliases="expert_tensor_parallel_size expert_tensor_parallel_degree etp"),
    _size("ep_fsdp_size",
        doc="Number of ranks that shard the parameters of experts. Default: the ranks that ep and etp "
            "leave.",
        aliases="ep_fsdp expert_data_parallel_size"),
    _size("vpp_size",
        doc="Number of virtual pipeline stages of each pp rank; needs `pp_size`.",
        aliases="virtual_pipeline_model_parallel_size virtual_pipeline_parallel_size "
            "num_virtual_stages vpp"),
    Field("sequence_parallel", Boolean(),
        doc="Whether activations between layers are split along tp; needs `tp_size`."),
    Field("order", types.DimOrder(),
        doc="All dims, outermost first, in place of [pp, dp, fsdp, cp, tp].",
        aliases="dim_order mesh_dim_names"),
))

MODEL = Section("model", "`model`", (
    Field("config", ModelConfig(),
        doc="Path of a config.json, or of the folder that contains one, as Hugging Face writes it; "
            "or its values. Read as data."),
    Field("num_heads", Integer(1, MAX_STEPS),
        doc="Number of attention heads, which tp and ulysses split.",
        aliases="num_attention_heads n_heads n_head"),
    Field("num_kv_heads", Integer(1, MAX_STEPS),
        doc="Number of heads of keys and values, if there are fewer.",
        aliases="num_key_value_heads num_query_groups n_kv_heads kv_heads"),
    Field("hidden_size", Integer(1, MAX_STEPS),
        doc="Width of a layer, which tp splits.",
        aliases="n_embd d_model"),
    Field("vocab_size", Integer(1, MAX_STEPS),
        doc="Number of rows of the embedding, which tp splits.",
        aliases="n_vocab padded_vocab_size"),
    Field("num_layers", Integer(1, MAX_STEPS),
        doc="Number of layers, which pp and vpp split.",
        aliases="num_hidden_layers n_layers n_layer"),
    Field("num_experts", Integer(1, MAX_STEPS),
        doc="Number of experts of a layer, which ep splits.",
        aliases="num_local_experts n_routed_experts num_moe_experts"),
    Field("sequence_length", Integer(1, MAX_STEPS),
        doc="Length of the longest sequence in tokens, which cp, ulysses and sequence_parallel split.",
        aliases="seq_len seq_length max_seq_len"),
))
MODEL_SIZES = MODEL.keys[1:]

PROGRAM = Section("program", "`program`", (
    Field("module", Text(), doc="A module, started as `python -m MODULE`."),
))

GROUP = Section("group", "a group", (
    Field("ranks", device_types.Ranks(),
        doc="Number of devices (on cpu: of processes), which are the next free ones; or a list of "
            "devices, numbered over the whole cluster.",
        required="group `{name}` needs `ranks`",
        required_help="a count, or a list of devices",
        aliases="world_size devices num_gpus n_gpus ngpus num_devices n_devices num_workers num_processes "
            "n_procs gpus nproc nproc_per_node"),
    Field("device_type", device_types.DeviceType(DEVICE_TYPES),
        doc="cuda, npu, mps or cpu. Default: the type of this machine.",
        aliases="device accelerator"),
    Field("visible_devices", device_types.VisibleDevices(),
        doc='Devices of a node that the group may use, as in CUDA_VISIBLE_DEVICES: "4,5", a list, or '
            'UUIDs.',
        aliases="cuda_visible_devices ascend_rt_visible_devices"),
    Field("gpus_per_worker", Integer(1), default=1,
        doc="Number of neighbouring devices of one node that each process drives.",
        aliases="gpus_per_process gpus_per_rank num_gpus_per_worker"),
    Field("env", types.Environment(),
        doc="Environment variables of the workers: a mapping with values, or a list of names to pass "
            "through.",
        aliases="envs env_vars environment runtime_env"),
    Field("colocate", Text("groups"),
        doc="Another group whose devices this one shares, as a world of its own.",
        aliases="colocated_with"),
    Field("nodes", device_types.NodeNames(),
        doc="Nodes on which the group is placed: numbers, names of node pools, or a list of both. Default: "
            "devices are the next free ones of any node; on cpu, processes are spread evenly over all nodes.",
        aliases="node nodelist node_list hosts"),
    Field("program", Script(PROGRAM),
        doc="A script in place of components, or {module: NAME}; it receives torchrun's environment.",
        aliases="script entrypoint"),
    Field("args", types.Arguments(),
        doc="Arguments of `program`; {run_dir} in them is the run's folder.",
        aliases="kwargs params init_args arguments"),
    Field("cwd", Text(), doc="Working directory of `program`.", aliases="workdir working_dir"),
    Field("python", Text(),
        doc="Python interpreter of the group's workers: a path, or a name on PATH. meshctl must be installed "
            "there for components, in the same version. Default: that of `meshctl`.",
        aliases="interpreter python_executable py_executable"),
    Field("service", Boolean(),
        doc="`program` serves the other groups: it is terminated when all of them are done, and the "
            "run fails if it ends earlier."),
    Field("restartable", Boolean(),
        doc="Whether the group restarts alone after a failure, while the other groups wait; its components "
            "have no state. Counted by `run.restarts`, which must be set."),
))
PROGRAM_KEYS = ("args", "cwd", "service")
"""Keys that are allowed only in a group with `program`."""

COMPONENT = Section("component", "a component", (
    Field("_target_", types.ClassPath(),
        doc="Dotted path of the class, which derives from meshctl.Component: found beside the recipe, "
            "in the working directory, then among installed packages.",
        required="component `{name}` needs `_target_`, the dotted path of its class",
        aliases="class cls class_path class_name target"),
    Field("group", Text("groups"),
        doc="Device group that the component runs on, over all of its workers.",
        required="component `{name}` needs `group`, the device group that it runs on",
        aliases="device_group remote_group"),
    Field("parallel", Nested(PARALLEL, Text("components"), "sizes, or the name of a component"),
        doc="Parallel layout: sizes that multiply to the workers of the group, or the name of a "
            "component of the same group whose mesh is shared. Default: dp over all workers.",
        aliases="parallelism parallel_config parallel_dims device_mesh"),
    Field("args", PlainData(),
        doc="Keyword arguments of the constructor, plain data; {run_dir} in them is the run's folder."),
    Field("frozen", Boolean(),
        doc="Whether the component has no state to checkpoint and is not the target of a sync: a "
            "reference, a teacher.",
        aliases="freeze"),
    Field("model", Nested(MODEL, Text(), "the path of a config.json, or a mapping of its sizes"),
        doc="Sizes of the model, compared with the layout: the path of a config.json (or of its "
            "folder), or numbers. Nothing is fetched, and nothing else reads it."),
))

DISPATCH = Section("dispatch", "`dispatch`", (
    Field("mode", DISPATCH_MODE,
        doc="How the input is partitioned. Default: the decorator's mode."),
    Field("balance", Word(BALANCE, "a quantity to balance", "MC520"),
        doc="`tokens`: even out tokens in place of sample counts.",
        aliases="balance_tokens balance_batch"),
    Field("home", Text("pipeline"),
        doc="An earlier stage of the same group: each sample goes to the data rank that produced it "
            "there."),
    Field("allow_empty", Boolean(),
        doc="Whether workers receive an empty batch if there are fewer samples than shares; otherwise "
            "an error.",
        aliases="allow_padding"),
    Field("split_groups", Boolean(),
        doc="Whether samples of one `group_id` may go to different workers."),
    Field("equal_counts", Boolean(),
        doc="With `balance: tokens`: whether the shares also have equal sample (or group) counts, "
            "within one.",
        aliases="equal_size"),
))
DISPATCHED = Nested(DISPATCH, DISPATCH_MODE)

INPUT = Section("input", "an input", (
    Field("from", types.SomeStages("pipeline"),
        doc="The stage, or the list of stages, whose values the parameter receives.",
        required="input `{name}` needs `from`, the stage that it takes"),
    Field("dispatch", DISPATCHED,
        doc="How this input reaches the workers, if it differs from the stage's `dispatch`."),
))

EVERY = Field("every", Integer(1), default=1,
    doc="The stage runs in steps n, 2n, ...; steps count from 1.",
    aliases="interval freq frequency period every_n_steps every_n_train_steps")
WHEN = Field("when", Word(TIMES, "a value of `when`", "MC523"),
    doc="The time at which the stage runs, in place of every step.")
AFTER = Field("after", Texts("pipeline"),
    doc="Stages that run before this one in a step, although it takes no value from them.",
    aliases="depends_on")

CALL = Section("call", "a stage with `call`", (
    Field("call", types.Endpoint(),
        doc="COMPONENT.METHOD: the endpoint that computes the stage's value."),
    Field("in", Inputs(INPUT),
        doc="Stages whose values the endpoint receives: one; a list, joined by sample id; or a mapping, "
            "PARAMETER: STAGE or PARAMETER: {from: STAGE, dispatch: MODE}. Left out: a source. `[]`: a "
            "stage without data.",
        aliases="input inputs"),
    Field("samples", Integer(1),
        doc="Number of samples of the stage's value in a step, over all workers, if known. Required "
            "for a source.",
        aliases="batch_size num_samples n_samples"),
    Field("sample_bytes", Integer(1, MAX_BYTES),
        doc="Approximate size in bytes of one sample of the stage's value; used by `show-topology`."),
    Field("dispatch", DISPATCHED,
        doc="How the input reaches the workers: a mode, or {mode: MODE, balance: tokens, ...}. "
            "Default: the decorator's."),
    Field("execute", Word(EXECUTE_MODES, "an execute mode", "MC522"),
        doc="Which workers are called. Default: the decorator's mode."),
    Field("collect", Word(COLLECT_MODES, "a collect mode", "MC521"),
        doc="What the stage's value is for the stages that take it. Default: the decorator's mode."),
    EVERY,
    WHEN,
    AFTER,
    Field("ends_run", Boolean(), is_optional=True,
        doc="Of a source: whether the run ends with its data. Default: for a source that is called in "
            "every step, or else for those that are called most often."),
    Field("patience", Seconds(), is_optional=True,
        doc="Seconds in which a worker must advance while the endpoint runs. Default: `run.patience`.",
        aliases="timeout timeout_seconds"),
))

SYNC = Section("sync", "a sync", (
    Field("sync", Text("components"),
        doc="COMPONENT whose weights are sent; COMPONENT.PART calls its method PART in place of "
            "`weights`."),
    Field("to", Text("components"),
        doc="COMPONENT that loads the weights; COMPONENT.METHOD calls METHOD in place of "
            "`load_weights`.",
        required="sync `{name}` needs `to`, the component that loads the weights"),
    EVERY,
    Field("max_staleness", Integer(), is_optional=True,
        doc="How many steps old the weights may be. Default: `every` - 1, which is strictly on-policy "
            "for `every: 1`.",
        aliases="staleness max_policy_age staleness_threshold"),
    Field("checksum", Boolean(), is_optional=True,
        doc="Whether each received part is compared with a checksum of what was sent: in all syncs, or in "
            "none. Default: in the first two syncs of a run."),
    WHEN,
    AFTER,
))
REPEAT = Section("repeat", "`repeat`", (
    Field("until", Text(),
        doc="The source among `stages` with whose data the block ends. It starts at its first sample each "
            "time, and its last batch may be short, or empty on a rank."),
    Field("times", Integer(1), default=1,
        doc="Number of rounds over the value of `over`."),
    Field("over", Text("pipeline"),
        doc="The stage outside of the block whose value is cut into minibatches."),
    Field("size", Integer(1),
        doc="Number of samples of a minibatch, over all workers; samples of one `group_id` stay together, "
            "and the last minibatch may be short."),
    Field("seed", Integer(0, MAX_SEED), default=0,
        doc="Seed of the order of samples, together with step and round."),
    Field("take", Integer(1),
        doc="Number of passes whose samples a step takes. A pass is the work on one sample of the block's "
            "source; it runs at its own pace."),
    Field("ahead", Integer(0), default=0,
        doc="Number of further steps whose passes are in progress."),
    Field("late", Integer(0), default=0,
        doc="Number of steps by which a slow pass may be taken later than its turn, while younger ones "
            "overtake it."),
))
INNER = Section("inner", "a stage of a block", tuple(
    field for field in CALL.fields if field.key not in ("every", "when", "ends_run")
))
NOT_IN_BLOCK = {
    "sync": "weights travel between steps",
    "repeat": "blocks cannot be nested",
    "stages": "blocks cannot be nested",
    "every": "write it on the block",
    "when": "write it on the block",
    "ends_run": "the data of its source end the block only",
}
"""Keys of stages that a stage of a block cannot have, and why."""
BLOCK = Section("block", "a block", (
    Field("repeat", Nested(REPEAT, example="{times: 3, over: STAGE, size: 128}, or {until: SOURCE}"),
        doc="How often `stages` run in a step: {until: SOURCE}, {times: 3, over: STAGE, size: 128}, or "
            "{take: 64}.",
        required="block `{name}` needs `repeat`",
        required_help="write `repeat: {until: SOURCE}`, `repeat: {over: STAGE, size: SAMPLES}`, or "
            "`repeat: {take: SAMPLES}`"),
    Field("stages", Named(INNER),
        doc="The stages that are repeated, by name, in their order. Elsewhere they are called BLOCK.STAGE.",
        required="block `{name}` needs `stages`",
        required_help="write the stages to repeat under `stages`"),
    EVERY,
    WHEN,
    AFTER,
))
_BY_KEY = {field.key: field for field in (*CALL.fields, *SYNC.fields, *BLOCK.fields)}
STAGE = Section("stage", "a stage", tuple(_BY_KEY.values()))
"""The section of a stage without `call`, `sync` and `repeat`."""

MODE = Field("mode", Word(METRIC_MODES, "a mode of a metric", "MC102"), default="min",
    doc="Whether the least or the greatest value is the best.",
    aliases="greater_is_better metric_mode")

BEST = Section("best", "`run.checkpoint.best`", (
    Field("on", Metric(),
        doc="The metric, STAGE.NAME, whose values say which checkpoints are the best.",
        required="`run.checkpoint.best` needs `on`",
        required_help="the metric, as STAGE.NAME",
        aliases="monitor metric_for_best_model"),
    Field("keep", Integer(1), default=1,
        doc="Number of checkpoints that are kept for their value, beside the newest."),
    MODE,
))

STOP = Section("stop", "`run.stop`", (
    Field("on", Metric(),
        doc="The metric, STAGE.NAME, without whose improvement the run ends.",
        required="`run.stop` needs `on`",
        required_help="the metric, as STAGE.NAME",
        aliases="monitor metric_for_best_model"),
    MODE,
    Field("patience", Integer(1), default=3,
        doc="Number of values in a row (not of steps) without a new best one, after which the run ends."),
))

RESTARTS = Section("restarts", "`run.restarts`", (
    Field("times", Integer(0), default=3,
        doc="Number of restarts within `within`, after which a failure ends the run; 0: none.",
        aliases="max_restarts max_failures retries"),
    Field("within", Seconds(), default=3600.0,
        doc="Time in which restarts count, in seconds or as 30m or 2h."),
))

ELASTIC = Section("elastic", "a group of `run.elastic`", (
    Field("min_ranks", Integer(1), default=1,
        doc="Least number of devices of the group (on cpu: of processes) with which the run goes on.",
        aliases="min_size min_nodes min_workers min_replicas nproc_min"),
))

TRACE = Section("trace", "`run.trace`", (
    Field("steps", Window(1, MAX_STEPS),
        doc="First and last step that are traced, [FIRST, LAST], or one step.",
        required="`run.trace` needs `steps`",
        required_help="the first and the last step, as [FIRST, LAST]"),
    Field("profiler", Boolean(),
        doc="Whether torch's profiler also runs in these steps. It writes a file for each worker beside "
            "the trace.",
        aliases="torch_profiler profile"),
))

LOGS = Section("logs", "`run.logs`", (
    Field("keep", Bytes(),
        doc="Bytes of the log of each worker that are kept, the newest, such as 1GiB. Default: all.",
        aliases="max_size max_bytes maxBytes rotation"),
))

CHECKPOINT = Section("checkpoint", "`run.checkpoint`", (
    Field("every", StepsOrTime(),
        doc="Steps between two checkpoints, or a time such as 10m; 0: only at the end."),
    Field("keep", Integer(1), default=3,
        doc="Number of checkpoints to keep, the newest.",
        aliases="keep_last keep_top_k max_to_keep max_ckpt_to_keep max_actor_ckpt_to_keep "
            "save_total_limit save_top_k"),
    Field("best", Nested(BEST, may_be_off=True, example="{on: STAGE.NAME}"),
        doc="Checkpoints that are kept beside the newest: those with the best value of a metric at or before "
            "their step. It writes none.",
        aliases="save_best keep_best save_best_only load_best_model_at_end"),
    Field("async", Boolean(),
        doc="Whether workers copy their state at the step, and write it while the run goes on. A checkpoint "
            "that is due before the last one is written waits for it.",
        aliases="async_save async_mode async_checkpoint is_async"),
), (Retired("local_dir", None,
    "checkpoints are written to the run directory; with `async: true`, while the run goes on"),))

RUN = Section("run", "`run`", (
    Field("steps", Integer(0, MAX_STEPS),
        doc="Number of steps after which the run ends. Default: it ends with the data.",
        aliases="total_steps max_steps max_num_steps num_steps train_steps training_steps "
            "total_training_steps train_iters max_iters"),
    Field("epochs", Integer(1),
        doc="Number of passes over the data.",
        aliases="num_epochs total_epochs max_epochs max_num_epochs num_train_epochs"),
    Field("dir", Text(), default="runs",
        doc="Folder of all runs; each run writes to NAME/TIME below it.",
        aliases="output_dir default_local_dir"),
    Field("checkpoint", Nested(CHECKPOINT, may_be_off=True, example="{every: STEPS}"),
        doc="When checkpoints are written; false for never.",
        aliases="checkpointing ckpt"),
    Field("stop", Nested(STOP, may_be_off=True, example="{on: STAGE.NAME, patience: 3}"),
        doc="Ends the run when a metric no longer improves; false for never.",
        aliases="early_stopping early_stop"),
    Field("on_nan", Word(ON_NAN, "a mode of `on_nan`", "MC102"), default="stop",
        doc="Answer to a metric that is NaN or infinite: `stop` ends the run with exit code 5, `ignore` "
            "goes on after a warning.",
        aliases="detect_nan terminate_on_nan check_nan nan_policy"),
    Field("grace", Seconds(), default=30.0,
        doc="Seconds in which workers may end by themselves when the run stops.",
        aliases="grace_period"),
    Field("time_limit", Seconds(),
        doc="Time after which the run ends in order, with exit code 0, in seconds or as 90m or 2h. It counts "
            "from the launch; 0: no limit.",
        aliases="max_time max_duration max_run_time time_budget"),
    Field("restarts", FirstKey(RESTARTS, wanted="a number, such as 3", may_be_off=True),
        doc="Restarts of the run after a failure, from its newest checkpoint: a number, which is short for "
            "{times: NUMBER, within: 1h}; false for none.",
        aliases="max_restarts max_failures"),
    Field("elastic", Named(ELASTIC),
        doc="Groups with which the run goes on when workers of theirs are lost for good, each with its least "
            "number of ranks: {train: {min_ranks: 4}}. Only dp and fsdp sizes change. Needs `restarts`."),
    Field("patience", Seconds(), default=600.0,
        doc="Seconds after which the run ends if a worker that waits for no other one has not advanced; "
            "six times that before the worker's first step is over. 0: no limit.",
        aliases="timeout timeout_seconds"),
    Field("log_level", Word(LOG_LEVELS, "a log level", "MC102"), default="warning",
        doc="The least level of Python's log records that workers of components write."),
    Field("logs", Nested(LOGS, may_be_off=True, example="{keep: 1GiB}"),
        doc="Bounds the logs of workers; false for no limit."),
    Field("track", Trackers(),
        doc="Trackers that receive the run: tensorboard, wandb, mlflow, trackio, or `module:NAME` for one of "
            "your own. A name, a list of names and of {NAME: {OPTION: VALUE}}, or a mapping; false for none.",
        aliases="logger loggers report_to trackers log_with"),
    Field("checks", Word(CHECKS, "a set of checks", "MC102"), default="basic",
        doc="Checks while the run goes on: `all` also compares what peers return and log, and all "
            "borrowed memory before and after each call, and names the collectives that differ."),
    Field("accept", Words(ACCEPTED, "a difference", "MC102"),
        doc="Differences from the checkpoint with which a resume goes on: `seed`, `args`, `components`, "
            "`pipeline`."),
    Field("trace", FirstKey(TRACE, may_be_off=True, example="{steps: [FIRST, LAST]}"),
        doc="Records what all workers do in some steps, in `trace.json` for https://ui.perfetto.dev: "
            "[FIRST, LAST] is short for {steps: [FIRST, LAST]}; false for no trace.",
        aliases="tracing timeline chrome_trace"),
    Field("show", Texts("pipeline", is_prefix=True),
        doc="Metrics that the display shows, as STAGE.NAME."),
    Field("record", Texts("pipeline"),
        doc="Routes whose values are recorded for a replay, as SOURCE -> TARGET, or SOURCE for all "
            "routes of a stage."),
))

POOL = Section("pool", "a node pool", (
    Field("count", Integer(1), default=1,
        doc="Number of nodes.",
        aliases="replicas"),
    Field("devices", device_types.DevicesOfPool(),
        doc="Number of devices of each node: a count, or a mapping of device types to counts, "
            "{cuda: 8, npu: 4}. Default: none.",
        aliases="devices_per_node gpus_per_node"),
))

CLUSTER = Section("cluster", "`cluster`", (
    Field("nodes", CountOrNamed(POOL),
        doc="Number of nodes; or node pools, which are nodes with the same devices under a name: "
            "{gpu: {count: 2, devices: 8}, cpu: {count: 1}}. Default: as many as `devices_per_node` "
            "lists, or the least that hold the groups.",
        aliases="num_nodes nnodes n_nodes num_machines"),
    Field("devices_per_node", device_types.DeviceCounts(),
        doc="Number of devices of each node: a count, a list with a count for each node, or a mapping "
            "of device types to either, {cuda: 8, npu: [4, 4]}.",
        aliases="gpus_per_node n_gpus_per_node num_gpus_per_node ngpus_per_node n_devices_per_node "
            "accelerators_per_node"),
    Field("device_memory", Bytes(),
        doc="Memory of each device, such as 80GB or 141GiB; `validate` and `show-topology` compare it with "
            "the bytes of parameters, gradients and optimizer state on each rank.",
        aliases="gpu_memory memory_per_gpu memory_per_device vram"),
), (Retired("domains", None,
    "groups are placed node by node; name the nodes of a rack in the `nodes` of a group"),))

RECIPE = Section("recipe", "a recipe", (
    Field("defaults", Defaults(),
        doc="Files that the recipe is composed of, in the order of merging: `base`, `./neighbour`, "
            "`layout@components.NAME.parallel: fsdp`; `_self_` is this file."),
    Field("name", types.RunName(),
        doc="Name of the folder of the recipe's runs. Default: the name of the file.",
        aliases="run_name experiment_name"),
    Field("seed", Integer(0, MAX_SEED), default=0,
        doc="Seed of every generator, together with component, data rank and step.",
        aliases="random_seed"),
    Field("cluster", Nested(CLUSTER),
        doc="Devices that the job may use. Default: the least that hold the groups."),
    Field("groups", Named(GROUP),
        doc="Device groups by name: where components run. Each is one torchrun world."),
    Field("components", Named(COMPONENT),
        doc="Components by name: what runs, on which group, in which layout."),
    Field("pipeline", Named(STAGE),
        doc="Stages by name, in the order of a step: the data flow. A stage's name is also the name "
            "of its value."),
    Field("run", Nested(RUN), doc="How long the recipe runs, and what it writes."),
    Field("engine", engine_fields.CHOICE,
        doc="Where the recipe runs: one engine with its options, such as {ssh: {hosts: [a, b]}}, or the name "
            "of an engine. `launch --engine NAME` chooses another one. Default: local.",
        aliases="launcher scheduler backend"),
    Field("vars", FreeMapping(),
        doc="Values written once and used as ${vars.NAME}.",
        aliases="variables"),
))
# fmt: on

SECTIONS = (
    *(PARALLEL, MODEL, CLUSTER, POOL, GROUP, COMPONENT, CHECKPOINT, RUN, STOP, BEST),
    *(RESTARTS, ELASTIC, LOGS, TRACE, CALL, SYNC, STAGE, DISPATCH, INPUT, RECIPE, BLOCK, INNER, REPEAT),
    *(engine_fields.ENGINE, *engine_fields.SECTIONS),
)
"""All sections. A misplaced key is assigned to the first section that has the key."""


def schema() -> Schema:
    """Returns the JSON Schema of recipes, for editors, as plain data."""
    sections = (section for section in (*SECTIONS, *TRACKER_SECTIONS) if section is not RECIPE)
    definitions = {one.name: one.schema(has_shorthand=one in (PARALLEL, MODEL)) for one in sections}
    return {
        "$schema": DRAFT,
        "title": "meshctl recipe",
        "description": "Device groups, the components that run on them, and the data flow between them.",
        **RECIPE.schema(),
        "$defs": {**definitions, "data": plain_data()},
    }


# The section or field of a key path: `("run", "grace")` is the field `grace` of `RUN`


def section_at(path: KeyPath, root: Node) -> Section | None:
    """Returns the section at a path; None for a single value, and for a mapping whose keys are chosen by
    users."""
    section, keys = RECIPE, iter(path)
    for key in keys:
        field = section.by_key.get(key)
        if field is None or not isinstance(field.type, (Nested, Named, Inputs, Trackers)):
            return None
        section = field.type.section
        has_names = not isinstance(field.type, (Nested, Trackers))
        if has_names and next(keys, None) is None:
            return None
    return stage_section(root.at(path)) if section is STAGE else section


def stage_section(stage: Node | None) -> Section:
    """Returns `CALL`, `SYNC` or `BLOCK` for a stage with keys of only one of these, and else `STAGE`."""
    signs = {CALL: ("call",), SYNC: ("sync",), BLOCK: ("repeat", "stages")}
    kinds = [
        kind for kind, keys in signs.items() if stage and any(stage.get(key) is not None for key in keys)
    ]
    return kinds[0] if len(kinds) == 1 else STAGE


def field_at(path: KeyPath, root: Node) -> Field | None:
    """Returns the field whose value is at a path; None if there is none."""
    section = section_at(path[:-1], root) if path else None
    return section.by_key.get(path[-1]) if section else None


def is_key(path: KeyPath, root: Node) -> bool:
    """Returns whether an override may set a key that is not in the recipe. Retired ones are reported
    later."""
    if counts_devices(path[:-1]):
        device_type = path[-1].lower()
        return DEVICE_ALIASES.get(device_type, device_type) in ACCELERATORS
    sections = [(section_at(path[:length], root), path[length]) for length in range(len(path))]
    is_retired = any(section and any(key == old.key for old in section.retired) for section, key in sections)
    return path[-1] in keys_below(path[:-1], root) or is_retired


def counts_devices(path: KeyPath) -> bool:
    """Returns whether the keys below a path are device types."""
    return path == ("cluster", "devices_per_node") or (
        path[:2] == ("cluster", "nodes") and len(path) == 4 and path[3] == "devices"
    )


def keys_below(path: KeyPath, root: Node) -> tuple[str, ...]:
    """Returns the keys that an override may set below a path. Empty for mappings whose keys users choose,
    below a name that is not in the recipe, and for the parameters of a call."""
    if path == ():
        return RECIPE.keys[1:]
    if counts_devices(path):
        return ACCELERATORS
    is_pool = path[:2] == ("cluster", "nodes")
    is_named = is_pool or path[0] in ("groups", "components", "pipeline")
    if is_named and root.at(path[: 3 if is_pool else 2]) is None:
        return ()
    if path[0] == "pipeline" and len(path) == 2:
        return STAGE.keys
    inner = path[4:] if path[2:3] == ("stages",) else path[2:]
    section = None if path[0] == "pipeline" and inner[:1] == ("in",) else section_at(path, root)
    return section.keys if section else ()
