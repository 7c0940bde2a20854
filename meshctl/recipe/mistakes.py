"""Reports unknown keys of a recipe, and moves their values to the right place before the recipe is read.

    sizes: {tp_sise: 2}                    a key that is misspelt or from another system
    steps: 3 beside `run:`                 a key of another section
    sampler: ... inside `actor: ...`       a group, a component or a stage in the wrong place

Each is reported once. The reader and the rules work on the corrected tree, so that one mistake does not lead
to further reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.yaml_tree import KeyPath, Node, can_hold, put
from meshctl.recipe.engine_fields import ENGINE
from meshctl.recipe.field_types import Section
from meshctl.recipe.fields import (
    BEST,
    CHECKPOINT,
    CLUSTER,
    COMPONENT,
    GROUP,
    INNER,
    INPUT,
    MODEL,
    NOT_IN_BLOCK,
    PARALLEL,
    RECIPE,
    RUN,
    SECTIONS,
    STAGE,
    STOP,
    stage_section,
)
from meshctl.recipe.fixes import renamed
from meshctl.recipe.section_types import Inputs, Named, Nested, Script
from meshctl.text.english import abbreviated, listed, nearest

NAMED = {"groups": GROUP, "components": COMPONENT, "pipeline": STAGE}
SIGNS = {
    "components": ("_target_",),
    "pipeline": ("call", "sync", "repeat"),
    "groups": ("ranks", "device_type"),
}
"""Keys by which a mapping is recognized as a component, a stage or a group."""
ONLY = {RECIPE: (), **{one: tuple(one.title.strip("`").split(".")) for one in (RUN, CLUSTER, STOP)}}
ONLY |= {one: tuple(one.title.strip("`").split(".")) for one in (CHECKPOINT, BEST)}
"""Section that occurs once in a recipe -> its key path."""
MAX_PLACES = 100
"""Maximum number of groups or components in which the place of a key is searched."""
AMBIGUOUS = {
    *("nproc", "nproc_per_node", "n_procs", "num_workers", "batch_size", "num_samples", "n_samples"),
    *("staleness_threshold", "keep_top_k", "save_top_k", "allow_padding", "mesh_dim_names"),
}
"""Words that have different meanings in other systems. Their replacements are suggested, and never
applied."""
ALIASES: dict[str, dict[str, None]] = {}
"""Another system's name -> the keys of the same meaning, each of another section."""
for _section in SECTIONS:
    for _field in _section.fields:
        for _word in _field.aliases.split():
            ALIASES.setdefault(_word, {})[_field.key] = None


# The meaning of a key


def called(word: str, keys: Iterable[str]) -> str:
    """Returns the key with this name in another system; empty if there is none."""
    keys = set(keys)
    return next((key for key in ALIASES.get(word.lower().replace("-", "_"), ()) if key in keys), "")


def nearest_key(word: str, keys: Iterable[str]) -> str:
    """Returns the key that was probably meant; empty if there is none."""
    keys = list(keys)
    return called(word, keys) or nearest(word, keys)


def odd_letter(name: str) -> str:
    """Returns help for a name with a letter that looks like another one; empty for a name in ASCII."""
    odd = next((letter for letter in name if not letter.isascii()), "")
    return f"`{odd}` is not a letter of ASCII, but U+{ord(odd):04X}" if odd else ""


def renamed_key(span: Span, word: str, keys: Iterable[str]) -> tuple[Fix, ...]:
    """Returns the edit that replaces a key by the one that was meant; empty if that is ambiguous."""
    keys = list(keys)
    if word.lower().replace("-", "_") in AMBIGUOUS:
        return ()
    alias = called(word, keys)
    return (Fix(span, word, alias),) if alias else renamed(span, word, keys)


def keys_meant(node: Node, known: Sequence[str]) -> dict[str, tuple[Fix, ...]]:
    """Returns unknown key -> edit to the key that was meant, for a mapping. There is no edit if the mapping
    also contains the right key, or if two keys would get the same name."""
    items = [
        (key, item.key or item.span) for key, item in node.items() if item.key not in (node.span, node.key)
    ]
    fixes = {key: renamed_key(span, key, known) for key, span in items if key not in known}
    counts = Counter((span.file, key) for key, span in items)
    counts.update((fix.span.file, fix.text) for some in fixes.values() for fix in some)
    is_one = {key: all(counts[fix.span.file, fix.text] == 1 for fix in some) for key, some in fixes.items()}
    return {key: some for key, some in fixes.items() if is_one[key]}


def kind_of(item: Node) -> str:
    """Returns `groups`, `components` or `pipeline` for a mapping that is recognized as an item of one of
    them, otherwise an empty string."""
    signs = {top: any(item.get(sign) is not None for sign in signs) for top, signs in SIGNS.items()}
    kinds = [top for top, has_sign in signs.items() if has_sign]
    return kinds[0] if item.is_mapping and len(kinds) == 1 else ""


# The place of a key


@dataclass(frozen=True)
class Location:
    """The place to which a misplaced key belongs."""

    help: str
    path: KeyPath = ()
    """The key path that was meant; empty if several are possible."""
    candidates: tuple[KeyPath, ...] = ()
    """The possible key paths if there are several."""


def location_of(key: str, section: Section, path: KeyPath, item: Node, root: Node) -> Location | None:
    """Returns the place to which a key belongs that was found in the wrong section: in the mapping at `path`,
    which is a `section`. `item` is its value, `root` the recipe. Returns None if no section has the key."""
    if top := kind_of(item):
        indent = ": indent it less" if path else ""
        help = f"it looks like {NAMED[top].title}, which goes under `{top}`{indent}"
        return Location(help, (top, key), ((top, key),))
    if key in FOREIGN:
        return None
    for word in (key, *ALIASES.get(key.lower().replace("-", "_"), ())):
        for other in sorted(SECTIONS, key=lambda other: ONLY.get(other, ())[: len(path)] != path):
            if other not in (section, INPUT) and word not in path[-1:] and word in other.by_key:
                is_value = item.value is None or isinstance(item.value, (str, bool))
                if not (is_value and is_mapping_only(other, word)):
                    return _location(key, word, other, path, root)
    return None


def is_mapping_only(section: Section, key: str) -> bool:
    """Returns whether every value of a key is a mapping."""
    type_ = section.by_key[key].type
    return isinstance(type_, Named) or (isinstance(type_, Nested) and not type_.shorthand)


def _location(key: str, word: str, section: Section, path: KeyPath, root: Node) -> Location:
    """Returns `it is called ranks here, and goes under groups.train`."""
    called = "it " if key == word else f"it is called `{word}` here, and "
    if section is RECIPE:
        return Location(f"{called}goes at the top of the recipe", (word,), ((word,),))
    places = tuple((*place, word) for place in _places(section, path, root))
    if len(places) == 1:
        return Location(f"{called}goes under `{'.'.join(places[0][:-1])}`", places[0], places)
    return Location(f"{called}is a key of {section.title}", (), places)


def _places(section: Section, path: KeyPath, root: Node) -> list[KeyPath]:
    """Returns the paths of the mappings of a section that may be meant: that of the same component, otherwise
    all."""
    if section in ONLY:
        return [ONLY[section]]
    top = "groups" if section is GROUP else "components" if section in (COMPONENT, PARALLEL, MODEL) else ""
    below = (section.name,) if section in (PARALLEL, MODEL) else ()
    names = [key for key, _ in (root.get(top) or root).items()] if root.get(top) else []
    if path[:1] == (top,) and len(path) > 1:
        names = [path[1]]
    return [(top, name, *below) for name in names] if len(names) <= MAX_PLACES else []


# Correcting


@dataclass(frozen=True)
class Corrected:
    """The corrected tree of a recipe, and the mistakes that were found."""

    tree: Node
    found: tuple[Diagnostic, ...]
    wrong: frozenset[KeyPath]
    """Key paths of unknown keys, and of the keys that may have been meant by them."""


def correct(root: Node) -> Corrected:
    """Returns the corrected tree of a recipe, and diagnostics about the mistakes."""
    walk = _Walk(root)
    tree = walk.section(root, (), RECIPE)
    for path, node in walk.moves:
        if tree.at(path) is None and can_hold(tree, path):
            tree = put(tree, path, node)
    return Corrected(tree, tuple(walk.found), frozenset(walk.wrong))


@dataclass
class _Walk:
    root: Node
    found: list[Diagnostic] = field(default_factory=list)
    wrong: set[KeyPath] = field(default_factory=set)
    moves: list[tuple[KeyPath, Node]] = field(default_factory=list)
    """(right key path, value) of each misplaced value."""

    def section(self, node: Node, path: KeyPath, section: Section) -> Node:
        """Returns a section with corrected keys."""
        if not node.is_mapping:
            return node
        meant = keys_meant(node, section.keys)
        items: dict[str, Node] = {}
        for key, item in node.items():
            if key in section.by_key:
                items[key] = self.value(item, (*path, key), section)
                continue
            self.wrong.add((*path, key))
            if self.is_refused(key, item, section, node):
                continue
            near = self.unknown(key, item, path, section, meant.get(key, ()))
            if near and meant.get(key):
                items[near] = self.value(item, (*path, near), section)
            elif near and node.get(near) is None:
                self.wrong.add((*path, near))
        return replace(node, value=items)

    def value(self, node: Node, path: KeyPath, section: Section) -> Node:
        type_ = section.by_key[path[-1]].type
        if isinstance(type_, Named) and node.is_mapping:
            return self.named(node, path, type_.section)
        if isinstance(type_, (Nested, Script)):
            if is_mapping_only(section, path[-1]) and isinstance(node.value, (str, int, float)):
                self.wrong.add(path)  # the reader reports it, so references into it are not reported
            return self.section(node, path, type_.section)
        if isinstance(type_, Inputs) and node.is_mapping and node.get("from") is None:
            items = {key: self.section(item, (*path, key), type_.section) for key, item in node.items()}
            return replace(node, value=items)
        return node

    def named(self, node: Node, path: KeyPath, section: Section) -> Node:
        """Returns the groups, components or stages, each with corrected keys."""
        items: dict[str, Node] = {}
        for name, item in node.items():
            other = kind_of(item)
            if other in ("", path[0]):
                items[name] = self.section(item, (*path, name), _section_of(item, section))
            else:
                message = f"`{name}` is {NAMED[other].title}, not {section.title}"
                self.report("MC101", message, item, f"it goes under `{other}`")
                self.moves.append(((other, name), self.section(item, (other, name), NAMED[other])))
        return replace(node, value=items)

    def is_refused(self, key: str, item: Node, section: Section, node: Node) -> bool:
        """Returns whether a key is of an earlier version, or one that a stage of a block cannot have. Reports
        it: as a warning where the value of a retired key had no effect."""
        span = item.key or item.span
        for old in (old for old in section.retired if key == old.key):
            message = f"`{key}` is no longer a key"
            wrong = Diagnostic("MC108", message, span, help=old.help)
            if item.value == old.idle:
                line = f"{' ' * (span.column - 1)}{old.key}: {item.written}"
                fixes = (Fix(replace(span, column=1, width=len(line)), line, ""),)
                wrong = Diagnostic("MC109", message, span, (), f"remove it: {old.help}", "warning", fixes)
            self.found.append(wrong)
            return True
        if section is not INNER or not (node.get("sync") or key in NOT_IN_BLOCK):
            return False
        if (why := NOT_IN_BLOCK.get(key)) and not (key == "stages" and node.get("repeat")):
            self.report("MC571", f"a stage of a block has no `{key}`: {why}", item)
        return True

    def unknown(self, key: str, item: Node, path: KeyPath, section: Section, fixes: tuple[Fix, ...]) -> str:
        """Reports an unknown key, and moves its value to another section if it belongs there. Returns the key
        of this section that was probably meant, or an empty string."""
        is_own = bool(fixes or called(key, section.keys)) and not kind_of(item)
        location = None if is_own else location_of(key, section, path, item, self.root)
        near = "" if location or (key in FOREIGN and not is_own) else nearest_key(key, section.keys)
        help = location.help if location else f"did you mean `{near}`?" if near else ""
        message = f"{section.title} has no key `{abbreviated(key)}`"
        help = help or self.help_for(key, item, path, section)
        self.report("MC101", message, item, help, () if location else fixes)
        if location and location.path:
            top, *names = location.path
            is_named = top in NAMED and len(names) == 1
            moved = self.section(item, location.path, _section_of(item, NAMED[top])) if is_named else item
            self.moves.append((location.path, moved))
        if location:
            self.wrong |= {place for place in location.candidates if self.root.at(place) is None}
        return near

    def help_for(self, key: str, item: Node, path: KeyPath, section: Section) -> str:
        """Returns the help for a key that is not similar to any other."""
        file = item.key.file if item.key else item.span.file
        if not path and f"/{key}/" in f"/{file}":
            return f"to set values of the recipe, write `# @package _global_` in the first line of `{file}`"
        if any(sign in key for sign in ":= "):
            return "write `KEY: VALUE`, with a `:` and a space"
        if section is ENGINE and isinstance(item.value, str) and item.value in section.by_key:
            return f"write `engine: {item.value}`"
        if help := odd_letter(key) or foreign_help(key):
            return help
        if section is COMPONENT:
            return "the arguments of the constructor go under `args`"
        if section is RECIPE and any(self.root.get(top) for top in NAMED):
            return "values that are used several times go under `vars`"
        return f"its {'key is' if len(section.keys) == 1 else 'keys are'} {listed(section.keys)}"

    def report(
        self, code: str, message: str, item: Node, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        self.found.append(Diagnostic(code, message, item.key or item.span, (), help, fixes=fixes))


def _section_of(item: Node, section: Section) -> Section:
    return stage_section(item) if section is STAGE else section


# The words of TRL, transformers, accelerate, verl and DeepSpeed that are not another name of a key (which are
# its `aliases`): the argument of a component that means the same, and one line of help

_EVALUATION = "an evaluation is a stage of the pipeline, or a block of stages, with `every: STEPS`"
_MINIBATCHES = "write a block of the pipeline with `repeat: {times: ROUNDS, over: STAGE, size: SAMPLES}`"
_ONE_WORKER = (
    "a component on one worker is in a group of its own, `{ranks: 1, colocate: GROUP}` (on cpu without "
    "`colocate`); a stage with `execute: first` calls a component of all workers on the first one"
)
# fmt: off
_ROWS = (
    ("resume_from_checkpoint resume", "", "to continue a run, launch its folder: meshctl launch RUN_DIR"),
    ("lazy_collect", "", "remove it: a value moves only to the stages that take it"),
    ("mesh_shape", "", "the sizes of the mesh go under `parallel`: {dp_size: 2, tp_size: 4}"),
    ("deepspeed zero_optimization zero_stage fsdp_config", "", "write `parallel: {fsdp_size: RANKS}`"),
    ("eval_every eval_interval eval_steps eval_freq test_freq val_check_interval eval_strategy "
        "evaluation_strategy validation_freq val_before_train do_eval", "", _EVALUATION),
    ("ppo_epochs num_ppo_epochs update_epochs num_minibatches num_mini_batches minibatch minibatch_size "
        "mini_batch_size ppo_mini_batch_size ppo_minibatch_size", "", _MINIBATCHES),
    ("early_stopping_patience early_stop_patience", "", "write `run.stop: {on: STAGE.NAME, patience: 3}`"),
    ("wandb wandb_project tensorboard mlflow", "", "it is a tracker: `run.track`"),
    ("logging_steps logging_strategy log_interval", "", "remove it: metrics.jsonl has those of each step"),
    ("save_steps save_strategy", "", "write `run.checkpoint: {every: STEPS}`"),
    ("remote_class execute_on", "", _ONE_WORKER),
    ("data dataset datasets train_files train_dataset dataset_name data_path data_files", "path", ""),
    ("model_name_or_path model_name model_path pretrained_model_name_or_path", "model", ""),
    ("tokenizer_name tokenizer_name_or_path processing_class", "tokenizer", ""),
    ("learning_rate actor_lr base_lr", "lr", ""),
    ("optim", "optimizer", ""),
    ("weight_decay adam_beta1 adam_beta2 adam_epsilon", "optimizer_options", "{weight_decay: 0.1}"),
    ("schedule lr_scheduler_type lr_scheduler scheduler", "schedule", "{name: cosine, warmup: 10}"),
    ("warmup_steps num_warmup_steps lr_warmup_steps", "schedule", "{warmup: 10}"),
    ("warmup_ratio", "schedule", "{warmup: 0.1}"),
    ("num_training_steps", "schedule", "{steps: 100}"),
    ("max_grad_norm gradient_clipping clip_grad grad_clip clip_grad_norm", "clip", ""),
    ("per_device_train_batch_size per_device_batch_size micro_batch_size train_micro_batch_size_per_gpu "
        "ppo_micro_batch_size_per_gpu", "micro_batch", "samples of a rank"),
    ("gradient_accumulation_steps accumulate_grad_batches", "micro_batch", "the passes follow from it"),
    ("mixed_precision precision bf16 fp16", "compute_dtype", "bfloat16; `dtype` is that of the weights"),
    ("torch_dtype model_dtype", "dtype", ""),
    ("attn_implementation", "attention", ""),
    ("torch_compile", "compile", ""),
    ("gradient_checkpointing activation_checkpoint", "activation_checkpointing", ""),
    ("lora use_peft peft_config lora_r lora_rank lora_alpha lora_dropout", "lora", "{r: 16, alpha: 32}"),
    ("lora_target lora_target_modules target_modules", "lora", "{target: all-linear}"),
    ("loss_type loss_fn", "loss", ""),
    ("adv_estimator", "advantage", ""),
    ("clip_ratio clip_range cliprange clip_eps clip_epsilon epsilon", "loss_options", "{clip: 0.2}"),
    ("clip_ratio_high clip_ratio_h epsilon_high", "loss_options", "{clip_high: 0.28}"),
    ("beta kl_coef kl_loss_coef init_kl_coef", "loss_options", "{kl: 0.01}"),
    ("num_generations num_return_sequences rollout_n n", "group_size", "the answers to each prompt"),
    ("max_completion_length max_response_length response_length max_tokens", "max_new_tokens", ""),
    ("max_prompt_length", "max_prompt_tokens", ""),
    ("max_seq_length max_seq_len model_max_length cutoff_len", "max_length", ""),
    ("packing", "pack", ""),
    ("assistant_only_loss completion_only_loss train_on_prompt", "learn", ""),
    ("reward_funcs reward_function custom_reward_function reward_fn", "functions", ""),
)
# fmt: on
FOREIGN = {word: (ours, line) for words, ours, line in _ROWS for word in words.split()}
"""Word -> (argument of the same meaning, or an empty string; help, a text or an example in braces)."""


def foreign_help(key: str, arguments: frozenset[str] | None = None) -> str:
    """Returns help for a word of another system; empty for other words. `arguments` are those of the
    constructor to which it was given; None for a key outside of `args`."""
    ours, line = FOREIGN.get(key.lower().replace("-", "_"), ("", ""))
    if not ours:
        return line
    written = f"`{ours}: {line}`" if line[:1] == "{" else f"`{ours}`{', ' * bool(line)}{line}"
    if arguments is None:
        return f"it is an argument of a component, {written}, under `components.NAME.args`"
    return f"write {written}" if ours in arguments else ""
