"""A composed tree -> `Recipe`: every key known, every value of the right type, all that is wrong in one pass.

What is wrong is said once and then passed on as "not known" (0, or empty), so that the rules stay silent
about it. Nothing here compares two values of the recipe; that is the business of `rules/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe import model
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, Node, Path, leaves, plain
from meshctl.recipe.field_reader import Values, integer_hint, number_of, shown, span_of, text_of
from meshctl.recipe.fixes import as_whole, renamed
from meshctl.recipe.model import MAX_BYTES, MAX_COUNT, MAX_NAME, MAX_SEED, MAX_STEPS
from meshctl.text.english import MAX_LETTERS, did_you_mean
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE
from meshctl.topology.sizes import MAY_BE_AUTO, SIZES

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


@dataclass(frozen=True)
class Read:
    recipe: model.Recipe
    found: tuple[Diagnostic, ...]
    wrong: frozenset[Path]
    """The key paths about which something was said: rules that need them stay silent."""

    @cached_property
    def _above_wrong(self) -> frozenset[Path]:
        return frozenset(bad[:length] for bad in self.wrong for length in range(len(bad)))

    def stands(self, *path: str) -> bool:
        """Whether nothing was said about this value, nor about anything above it."""
        return not any(path[:length] in self.wrong for length in range(len(path) + 1))

    def right(self, *path: str) -> bool:
        """Whether nothing was said about this value, nor about anything above or below it."""
        return path not in self._above_wrong and self.stands(*path)


def read(root: Node, stem: str) -> Read:
    """The recipe that a tree says; `stem` is its name where it gives none."""
    reader = _Reader(root)
    recipe = reader.recipe(root, stem)
    return Read(recipe, tuple(reader.found), frozenset(reader.wrong))


def is_run_name(name: str) -> bool:
    """Whether it can name a folder of runs."""
    return re.fullmatch(r"\w[\w.@+-]*", name) is not None and len(name) <= MAX_NAME


class _Reader(Values):
    """The parts of a recipe."""

    def each(self, root: Node, top: str) -> Iterator[tuple[str, Node, Path]]:
        """The named items of `groups`, `components` or `pipeline`; an item that is no mapping is said and
        passed over."""
        node = self.mapping(root.get(top), (top,))
        for name, item in node.items() if node else ():
            path = (top, name)
            if not NAME.fullmatch(name) or (top == "groups" and name.startswith("agent-")):
                help = "a name has letters, digits, `_` and `-`, and begins with a letter"
                self.say(
                    path,
                    "MC106",
                    f"`{name[:MAX_LETTERS]}` cannot be a name",
                    item.key or item.span,
                    help=help,
                )
            elif len(name) > MAX_NAME:
                self.say(
                    path,
                    "MC106",
                    f"a name of {len(name)} letters is too long",
                    item.key or item.span,
                    help=f"use {MAX_NAME} or less",
                )
            if found := self.mapping(item, path, _whole_item(top, item)):
                yield name, found, path

    # The parts of a recipe

    def recipe(self, root: Node, stem: str) -> model.Recipe:
        self.keys(root, (), model.TOP, "a recipe")
        self.still_missing(self.mapping(root.get("vars"), ("vars",)), ("vars",))
        name = self.text(root, ("name",), stem)
        if root.get("name") is not None and ("name",) not in self.wrong and name and not is_run_name(name):
            help = "use letters, digits, `-`" if len(name) <= MAX_NAME else f"use {MAX_NAME} letters or less"
            self.say(
                ("name",),
                "MC106",
                f"`{name[:MAX_LETTERS]}` cannot name a folder of runs",
                span_of(root, ("name",)),
                help=help,
            )
        return model.Recipe(
            name=name if is_run_name(name) else "recipe",
            seed=self.whole(root, ("seed",), most=MAX_SEED),
            cluster=self.cluster(root),
            groups={name: self.group(name, node, path) for name, node, path in self.each(root, "groups")},
            components={
                name: self.component(name, node, path) for name, node, path in self.each(root, "components")
            },
            pipeline={name: self.stage(name, node, path) for name, node, path in self.each(root, "pipeline")},
            run=self.run(root),
        )

    def still_missing(self, node: Node | None, path: Path) -> None:
        """Every `???` among values of any kind."""
        for found, leaf in leaves(node, path) if node is not None else ():
            if leaf.value == MISSING:
                self.expected("a value", leaf, found)

    def cluster(self, root: Node) -> model.Cluster:
        node = self.mapping(root.get("cluster"), ("cluster",))
        if node is None:
            return model.Cluster()
        self.keys(node, ("cluster",), model.CLUSTER, "`cluster`")
        nodes = self.whole(node, ("cluster", "nodes"), least=1)
        return model.Cluster(nodes, self.devices_per_node(node))

    def devices_per_node(self, cluster: Node) -> int | tuple[int, ...] | dict[str, int | tuple[int, ...]]:
        """A count, one for each node, or either of these by device type."""
        path = ("cluster", "devices_per_node")
        given = cluster.get(path[-1])
        if given is None or not given.is_mapping:
            return self.devices(cluster, path)
        found: dict[str, int | tuple[int, ...]] = {}
        seen: dict[str, Span] = {}
        for key, item in given.items():
            word, span = model.DEVICE_ALIASES.get(key.lower(), key.lower()), item.key or item.span
            if word == "cpu":
                help = "leave it out: a cpu group says how many processes it has"
                self.say(
                    (*path, key),
                    "MC314",
                    "`devices_per_node` counts accelerators, cpu is none",
                    span,
                    help=help,
                )
            elif word not in model.ACCELERATORS:
                self.say(
                    (*path, key),
                    "MC301",
                    f"`{key}` is not a device type",
                    span,
                    help=did_you_mean(word, model.ACCELERATORS),
                )
            elif word in seen:
                self.say(
                    (*path, key),
                    "MC314",
                    f"`devices_per_node` says {word} twice",
                    span,
                    seen[word].with_word("here already"),
                )
            else:
                found[word], seen[word] = self.devices(given, (*path, key)), span
        return {word: number for word, number in found.items() if number}

    def devices(self, parent: Node, path: Path) -> int | tuple[int, ...]:
        """How many devices each node has, or one node after the other; 0 where it is left out or wrong."""
        given = parent.get(path[-1])
        if given is None or not given.is_list:
            return self.whole(parent, path, least=1)
        before = len(self.wrong)
        numbers = tuple(self.whole(given, (*path, str(index))) for index in range(len(given.value)))
        if not any(numbers) and len(self.wrong) == before:
            self.say(
                path,
                "MC102",
                f"`{shown(path)}` says no device",
                given.span,
                help="the list has a number for each node",
            )
        return numbers if any(numbers) else 0

    def group(self, name: str, node: Node, path: Path) -> model.DeviceGroup:
        self.keys(node, path, model.GROUP, "a group")
        return model.DeviceGroup(
            name=name,
            ranks=self.ranks(node, (*path, "ranks")),
            device_type=self.device_type(node, (*path, "device_type")),
            gpus_per_worker=self.whole(node, (*path, "gpus_per_worker"), 1, least=1),
            visible_devices=self.visible(node, (*path, "visible_devices")),
            env=self.env(node, (*path, "env")),
            colocate=self.text(node, (*path, "colocate")),
            program=self.program(node, path),
        )

    def ranks(self, node: Node, path: Path) -> int | tuple[int, ...]:
        given = node.get("ranks")
        if given is None:
            self.missing(
                node,
                path,
                model.GROUP,
                f"group `{path[1]}` must say its `ranks`",
                "a count, or a list of devices",
            )
            return 0
        if isinstance(given.value, str) and (devices := _listed_devices(given.value)):
            self.expected(
                "a whole number from 1, or a list", given, path, f"write [{', '.join(map(str, devices))}]"
            )
            return 0
        if not given.is_list:
            return self.whole(node, path, least=1)
        numbers = [number_of(item, int) for item in given.value]
        right = [number for number in numbers if type(number) is int and 0 <= number <= MAX_COUNT]
        if len(right) < len(numbers):
            known = set(right)
            bad = next(
                item
                for item, number in zip(given.value, numbers, strict=True)
                if type(number) is not int or number not in known
            )
            self.expected("the number of a device, from 0", bad, path)
            return 0
        if not right:
            self.say(path, "MC102", f"`{shown(path)}` names no device", given.span)
        seen: dict[int, Span] = {}
        for number, item in zip(right, given.value, strict=True):
            if number in seen:
                self.say(
                    path,
                    "MC102",
                    f"`{shown(path)}` names device {number} twice",
                    item.span,
                    seen[number].with_word("here already"),
                )
                return 0
            seen[number] = item.span
        return tuple(right) or 0

    def device_type(self, node: Node, path: Path) -> str:
        given = self.text(node, path)
        word = model.DEVICE_ALIASES.get(given.lower(), given.lower())
        if given and word not in model.DEVICE_TYPES:
            span, words = span_of(node, path), model.DEVICE_TYPES
            fixes = renamed(span, given, words)
            self.say(
                path,
                "MC301",
                f"`{given}` is not a device type",
                span,
                help=did_you_mean(word, words),
                fixes=fixes,
            )
            return ""
        return word

    def visible(self, node: Node, path: Path) -> tuple[str, ...]:
        """The text of CUDA_VISIBLE_DEVICES, or a list; one device may be a bare number."""
        given = node.get("visible_devices")
        if given is None:
            return ()
        if given.value == "" or (given.is_list and not given.value):
            help = "leave it out for all; a job without devices is on cpu"
            self.say(path, "MC102", f"`{shown(path)}` names no device", given.span, help=help)
            return ()
        if given.is_list:
            return self.scalar_texts(node, path)
        if isinstance(given.value, bool) or not isinstance(given.value, (str, int)) or given.value == MISSING:
            self.expected('text like "8,9"', given, path)
            return ()
        parts = tuple(part.strip() for part in text_of(given).split(","))
        if not all(parts):
            self.expected('text like "8,9"', given, path)
        return parts if all(parts) else ()

    def env(self, node: Node, path: Path) -> tuple[tuple[str, str | None], ...]:
        """Names with values, or a list of names to pass through."""
        given = node.get("env")
        if given is None:
            return ()
        if given.is_list:
            return tuple((name, None) for name in self.texts(node, path))
        if self.mapping(given, path) is None:
            return ()
        values: list[tuple[str, str | None]] = []
        for key, item in given.items():
            if not key or "=" in key or "\0" in key:
                self.say(
                    (*path, key),
                    "MC106",
                    f"`{key[:MAX_LETTERS]}` cannot name an environment variable",
                    item.key or item.span,
                )
            elif isinstance(item.value, bool):
                hint = f'quote it: "{item.written}"'
                self.expected("text or a number", item, (*path, key), hint)
            elif isinstance(item.value, (str, int, float)) and item.value != MISSING:
                values.append((key, text_of(item)))
            else:
                self.expected("text or a number", item, (*path, key))
        return tuple(values)

    def program(self, node: Node, path: Path) -> model.Program | None:
        given = node.get("program")
        if given is None:
            for key in ("args", "cwd", "python", "service"):
                if (item := node.get(key)) is not None:
                    help = "say `program:` too, or give `args` to a component"
                    self.say(
                        (*path, key),
                        "MC101",
                        f"`{key}` belongs to a program, this group has none",
                        item.key or item.span,
                        help=help,
                    )
            return None
        script, module = "", ""
        if given.is_mapping:
            self.keys(given, (*path, "program"), ("module",), "`program`")
            module = self.text(given, (*path, "program", "module"))
        else:
            script = self.text(node, (*path, "program"))
        if not (script or module) and (*path, "program") not in self.wrong:
            self.expected("a script, or {module: NAME}", given, (*path, "program"))
        arguments = self.scalar_texts(node, (*path, "args"))
        return model.Program(
            script,
            module,
            arguments,
            cwd=self.text(node, (*path, "cwd")),
            python=self.text(node, (*path, "python")),
            service=self.boolean(node, (*path, "service")),
        )

    def component(self, name: str, node: Node, path: Path) -> model.Component:
        self.keys(node, path, model.COMPONENT, "a component")
        for key, what in (
            ("_target_", "the dotted path of its class"),
            ("group", "the device group that it runs on"),
        ):
            if node.get(key) is None:
                self.missing(
                    node, (*path, key), model.COMPONENT, f"component `{name}` must say `{key}`, {what}"
                )
        target = self.text(node, (*path, "_target_"))
        if target and not TARGET.fullmatch(target):
            help = "write module.Class, without a path or `.py`"
            self.say(
                (*path, "_target_"),
                "MC501",
                f"`{target}` is no dotted path of a class",
                span_of(node, ("_target_",)),
                help=help,
            )
            target = ""
        arguments = (
            self.mapping(node.get("args"), (*path, "args")) if not _is_none(node.get("args")) else None
        )
        return model.Component(
            name=name,
            target=target,
            group=self.text(node, (*path, "group")),
            parallel=self.parallel(node, (*path, "parallel")),
            model=self.model_sizes(node, (*path, "model")),
            args=self.arguments(arguments, (*path, "args")),
            frozen=self.boolean(node, (*path, "frozen")),
        )

    def arguments(self, node: Node | None, path: Path) -> dict[str, Any]:
        """Plain data; a `???` in it is a value still to be given, a `_target_` would be code."""
        if node is None:
            return {}
        self.plain_data(node, path)
        value = plain(node)
        return value if isinstance(value, dict) else {}

    def plain_data(self, node: Node, path: Path) -> None:
        if node.value == MISSING or node.value is BROKEN:
            self.expected("a value", node, path)
        for key, item in node.items():
            if key == "_target_":
                help = "let the component build it from plain arguments"
                self.say(
                    (*path, key),
                    "MC107",
                    "`args` are plain data, a `_target_` in them is not instantiated",
                    item.span,
                    help=help,
                )
            self.plain_data(item, (*path, key))
        if node.is_list:
            for index, item in enumerate(node.value):
                self.plain_data(item, (*path, str(index)))
        if isinstance(node.value, float) and (
            node.value != node.value or node.value in (float("inf"), -float("inf"))
        ):
            self.expected("a finite number", node, path)
        if type(node.value) in (int, float):
            self.octal(node, path)

    def parallel(self, node: Node, path: Path) -> model.Sizes | str:
        given = node.get("parallel")
        if given is None:
            return model.Sizes()
        if isinstance(given.value, str) and given.value != MISSING:
            return given.value
        if not given.is_mapping:
            self.expected("sizes, or the name of a component", given, path)
            return model.Sizes()
        self.keys(given, path, model.PARALLEL, "`parallel`")
        sizes = [(key, self.size(item, (*path, key))) for key, item in given.items() if key in SIZES]
        order, along_tp = (
            self.texts(given, (*path, "order")),
            self.boolean(given, (*path, "sequence_parallel")),
        )
        return model.Sizes(tuple((key, size) for key, size in sizes if size), order, along_tp)

    def model_sizes(self, node: Node, path: Path) -> model.Model:
        """A path, or numbers."""
        given = node.get("model")
        if given is None or (isinstance(given.value, str) and given.value != MISSING):
            return model.Model(self.text(node, path))
        if not given.is_mapping:
            self.expected("the path of a config.json, or a mapping of its sizes", given, path)
            return model.Model()
        self.keys(given, path, model.MODEL, "`model`")
        sizes = [
            (size, self.whole(given, (*path, size), least=1, most=MAX_STEPS)) for size in model.MODEL_SIZES
        ]
        return model.Model(
            self.text(given, (*path, "config")), tuple((size, number) for size, number in sizes if number)
        )

    def size(self, node: Node, path: Path) -> int | str:
        """A whole number from 1, or where it may be inferred, `auto`; 0 where it is wrong."""
        auto = path[-1] in MAY_BE_AUTO
        if auto and node.value == "auto":
            return "auto"
        value = number_of(node, int)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
            wanted = f"a whole number from 1{' or auto' if auto else ''}"
            self.expected(wanted, node, path, integer_hint(node), as_whole(node, 1, MAX_COUNT))
            return 0
        self.octal(node, path)
        return value

    # Stages

    def stage(self, name: str, node: Node, path: Path) -> model.Stage:
        if node.get("repeat") is not None or node.get("stages") is not None:
            span = next(item for key, item in node.items() if key in ("repeat", "stages"))
            self.say(
                path, "MC104", "`repeat` (a loop inside a step) is not supported yet", span.key or span.span
            )
            return model.Stage(name, kind="")
        call, sync = node.get("call"), node.get("sync")
        if call is None and sync is None:
            help = "`call: COMPONENT.METHOD`, or `sync: COMPONENT, to: COMPONENT`"
            if any(key not in model.STAGE for key, _ in node.items()):
                self.keys(node, path, model.STAGE, "a stage")
                self.wrong.add(path)
            else:
                self.say(
                    path, "MC103", f"stage `{name}` must say what it does", node.key or node.span, help=help
                )
            return model.Stage(name, kind="")
        if call is not None and sync is not None:
            self.say(
                path,
                "MC102",
                "a stage is a `call` or a `sync`",
                sync.key or sync.span,
                (call.key or call.span).with_word("and here"),
            )
            return model.Stage(name, kind="")
        return self.call(name, node, path) if call is not None else self.sync(name, node, path)

    def call(self, name: str, node: Node, path: Path) -> model.Stage:
        self.keys(node, path, model.CALL, "a stage that calls")
        text = self.text(node, (*path, "call"))
        component, dot, method = text.rpartition(".")
        if ("components", component) in self.wrong:
            self.wrong.add((*path, "call"))  # its name was said where it is given
        elif text and not (dot and NAME.fullmatch(component) and method.isidentifier()):
            self.say((*path, "call"), "MC511", f"`{text}` is not COMPONENT.METHOD", span_of(node, ("call",)))
            component = method = ""
        return model.Stage(
            name=name,
            component=component,
            method=method,
            inputs=self.inputs(node, (*path, "in")),
            samples=self.whole(node, (*path, "samples"), least=1),
            sample_bytes=self.whole(node, (*path, "sample_bytes"), least=1, most=MAX_BYTES),
            dispatch=self.dispatch(node.get("dispatch"), (*path, "dispatch")) or model.DispatchWords(),
            execute=self.word(node, (*path, "execute"), EXECUTE, "an execute mode", "MC522"),
            collect=self.word(node, (*path, "collect"), tuple(COLLECT), "a collect mode", "MC521"),
            every=self.whole(node, (*path, "every"), 1, least=1),
            when=self.word(node, (*path, "when"), model.WHEN, "a time", "MC523"),
            after=self.texts(node, (*path, "after")),
        )

    def sync(self, name: str, node: Node, path: Path) -> model.Stage:
        self.keys(node, path, model.SYNC, "a sync")
        source, _, part = self.text(node, (*path, "sync")).partition(".")
        if node.get("to") is None:
            self.missing(node, (*path, "to"), model.SYNC, f"sync `{name}` must say `to` which component")
        target, _, loader = self.text(node, (*path, "to")).partition(".")
        staleness = (
            self.whole(node, (*path, "max_staleness")) if node.get("max_staleness") is not None else None
        )
        return model.Stage(
            name=name,
            kind="sync",
            component=source,
            method=part or "weights",
            every=self.whole(node, (*path, "every"), 1, least=1),
            when=self.word(node, (*path, "when"), model.WHEN, "a time", "MC523"),
            after=self.texts(node, (*path, "after")),
            to=target,
            to_method=loader or f"load_{part or 'weights'}",
            max_staleness=staleness,
            checksum=self.boolean(node, (*path, "checksum")),
        )

    def inputs(self, node: Node, path: Path) -> tuple[model.Input, ...]:
        given = node.get("in")
        if given is None:
            return ()
        if (
            given.is_mapping
            and given.get("from") is not None
            and {key for key, _ in given.items()} <= {"from", "dispatch"}
        ):
            help = "say which parameter takes it, {batch: {from: STAGE, dispatch: all}}, or say `dispatch` beside `in`"
            self.say(
                path, "MC102", "`in` names a stage, or parameters that take stages", given.span, help=help
            )
            return ()
        if given.is_mapping and given.value:
            return tuple(self.parameter(key, item, (*path, key)) for key, item in given.items())
        stages = () if given.is_mapping else self.texts(node, path)
        if (given.is_list or given.is_mapping) and not given.value:
            self.say(path, "MC102", "`in` names no stage", given.span, help="leave it out for a source")
        return (model.Input(stages),) if stages else ()

    def parameter(self, name: str, node: Node, path: Path) -> model.Input:
        """`scores: scored`, or `scores: {from: scored, dispatch: all}`."""
        if not name.isidentifier():
            self.say(path, "MC102", f"`{name}` cannot name a parameter", node.key or node.span)
        if not node.is_mapping:
            return model.Input(self.texts(Node({name: node}, node.span), path), name)
        self.keys(node, path, ("from", "dispatch"), "an input")
        if node.get("from") is None:
            self.missing(
                node, (*path, "from"), ("from", "dispatch"), f"input `{name}` must say `from` which stage"
            )
        return model.Input(
            self.texts(node, (*path, "from")), name, self.dispatch(node.get("dispatch"), (*path, "dispatch"))
        )

    def dispatch(self, node: Node | None, path: Path) -> model.DispatchWords | None:
        """`slice_dp`, or the same in full: `{mode: slice_dp, balance: tokens}`."""
        if node is None:
            return None
        if not node.is_mapping:
            mode = self.word(
                Node({path[-1]: node}, node.span), path, tuple(DISPATCH), "a dispatch mode", "MC520"
            )
            return model.DispatchWords(mode or None)
        self.keys(node, path, model.DISPATCH, "`dispatch`")
        return model.DispatchWords(
            mode=self.word(node, (*path, "mode"), tuple(DISPATCH), "a dispatch mode", "MC520") or None,
            balance=self.word(node, (*path, "balance"), ("tokens",), "something to balance", "MC520"),
            home=self.text(node, (*path, "home")),
            allow_empty=self.boolean(node, (*path, "allow_empty")),
            split_groups=self.boolean(node, (*path, "split_groups")),
            equal_counts=self.boolean(node, (*path, "equal_counts")),
        )

    # The run

    def run(self, root: Node) -> model.Run:
        node = self.mapping(root.get("run"), ("run",))
        if node is None:
            return model.Run()
        self.keys(node, ("run",), model.RUN, "`run`")
        return model.Run(
            steps=self.whole(node, ("run", "steps"), most=MAX_STEPS),
            epochs=self.whole(node, ("run", "epochs")),
            dir=self.text(node, ("run", "dir"), "runs"),
            checkpoint=self.checkpoint(node),
            grace=self.number(node, ("run", "grace"), 30.0),
            show=self.texts(node, ("run", "show")),
            record=self.texts(node, ("run", "record")),
            patience=self.number(node, ("run", "patience"), 3600.0),
        )

    def checkpoint(self, run: Node) -> model.Checkpoint | None:
        given = run.get("checkpoint")
        if given is None or given.value is None or given.value is False:
            return None
        path = ("run", "checkpoint")
        if (
            self.mapping(
                given, path, f"write {{every: {given.value if type(given.value) is int else 'STEPS'}}}"
            )
            is None
        ):
            return None
        self.keys(given, path, model.CHECKPOINT, "`run.checkpoint`")
        return model.Checkpoint(
            self.whole(given, (*path, "every")), self.whole(given, (*path, "keep"), 3, least=1)
        )


def _whole_item(top: str, item: Node) -> str:
    """What to write where an item is said by one value."""
    value = item.value
    if top == "groups" and isinstance(value, int) and not isinstance(value, bool):
        return f"write {{ranks: {value}}}"
    if top == "components" and isinstance(value, str) and TARGET.fullmatch(value):
        return f"write {{_target_: {value}, group: GROUP}}"
    return (
        f"write {{call: {value}}}"
        if top == "pipeline" and isinstance(value, str) and value.count(".") == 1
        else ""
    )


def _listed_devices(text: str) -> list[int]:
    """The numbers in `0,1` or `0-3`, where there are several and no more than a list would have."""
    if found := re.fullmatch(r"(\d{1,6})-(\d{1,6})", text):
        first, last = int(found[1]), int(found[2])
        return list(range(first, last + 1)) if 0 < last - first < 16 else []
    return [int(part) for part in text.split(",")] if re.fullmatch(r"\d{1,6}( *, *\d{1,6})+", text) else []


def _is_none(node: Node | None) -> bool:
    return node is not None and node.value is None
