"""Reads the calls of a Python file of Twinkle as keys, without running it.

    mesh = DeviceMesh.from_sizes(fsdp_size=4)
    model = TransformersModel(model_id="m", device_mesh=mesh, remote_group="train")
    model.set_optimizer("AdamW", lr=1e-5)
    model.set_loss(GRPOLoss(beta=0.1))

    TransformersModel.model_id                   m
    TransformersModel.device_mesh.fsdp_size      4           the arguments of the call that made the value
    TransformersModel.remote_group.ranks         [0, 1]      of `DeviceGroup(name="train", ranks=[0, 1])`
    TransformersModel.set_optimizer.0            AdamW       a positional argument
    TransformersModel.set_loss.0                 GRPOLoss    the class of an object, and below it `.beta`
    TransformersModel.2.model_id                             of the second object of the class
    loop.steps                                   500         of `if step >= 500: break` in the loop

Names stand for the literals that were assigned to them. Another expression is unknown.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

from meshctl.diagnostics import Span
from meshctl.foreign.model import Given, Unreadable

SYSTEM = "twinkle"
"""The package whose calls are read."""
MODELS = ("TransformersModel", "MegatronModel", "MultiLoraTransformersModel", "MultiLoraMegatronModel")
DATASETS = ("Dataset", "LazyDataset", "PackingDataset", "IterableDataset", "IterablePackingDataset")
READ = {
    *(*MODELS, *DATASETS, "vLLMSampler", "TorchSampler", "SamplingParams", "DataLoader", "DatasetMeta"),
    *("GRPOAdvantage", "RLOOAdvantage", "CheckpointEngineManager", "DeviceGroup", "initialize"),
}
"""The classes and functions whose arguments are keys."""
GROUPS, GROUP, MESH = "DeviceGroup", "remote_group", "DeviceMesh"
"""The class of groups, which the argument `name` names, the argument that refers to one, and the class of
meshes."""
WITH_OBJECTS = ("set_loss", "add_adapter_to_model")
"""The methods that take an object whose arguments are keys, too."""
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def calls_in(text: str, name: str) -> Iterator[Given]:
    """Yields the arguments of the calls of a file. Raises `Unreadable` for a file that is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unreadable(f"`{name}` is not Python: {error}") from None
    yield from _Calls(tree, name).given()


class _Calls:
    def __init__(self, tree: ast.Module, name: str) -> None:
        self._tree, self._name = tree, name
        self._literals = dict[str, ast.expr]()
        self._made = dict[str, ast.Call]()
        """Variable -> the call that made its value."""
        self._groups = dict[str, ast.Call]()
        self._known, self._imported = {SYSTEM}, set[str]()
        """The names that are imported from the system, and all imported names."""
        nodes = [*ast.walk(tree)]
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {one.asname or one.name for one in node.names}
                self._imported |= names
                if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == SYSTEM:
                    self._known |= names
            for target, value in _assigned(node):
                places = self._made if isinstance(value, ast.Call) else self._literals
                places.setdefault(target, value)  # type: ignore[arg-type]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._calls = sorted(calls, key=lambda one: (one.lineno, one.col_offset))
        self._numbers = dict[int, int]()
        """A call of a class -> its number among those of the class, from 1 on."""
        counts, self._used = Counter[str](), set[Any]()
        for call in self._calls:
            if _class_of(call) == GROUPS:
                self._groups[str(self._value(_keyword(call, "name")))] = call
            elif isinstance(call.func, ast.Name) and call.func.id in self._known:
                counts[call.func.id] += 1
                self._numbers[id(call)] = counts[call.func.id]
            self._used.add(self._value(_keyword(call, GROUP)))

    def given(self) -> Iterator[Given]:
        """Yields each key once, as in the first call that has it."""
        seen = set[str]()
        for call in self._calls:
            prefix = self._prefix(call)
            if prefix.split(".")[0] in READ:
                for one in self._arguments(call, prefix):
                    if one.key not in seen:
                        seen.add(one.key)
                        yield one
        for key, value in _loops(self._tree, self._made, False, None):
            if key not in seen:
                seen.add(key)
                yield self._given(key, value)

    def _given(self, key: str, node: ast.expr, value: Any = None) -> Given:
        value = self._value(node) if value is None else value
        is_null = isinstance(node, ast.Constant) and node.value is None
        unknown = ast.unparse(node)[:40] if value is None and not is_null else ""
        is_one_line = node.end_lineno == node.lineno and node.end_col_offset is not None
        width = max(1, (node.end_col_offset or 0) - node.col_offset) if is_one_line else 1
        return Given(key, value, Span(self._name, node.lineno, node.col_offset + 1, width), unknown)

    def _prefix(self, call: ast.Call) -> str:
        """Returns the beginning of the keys of a call: its class or function, or class and method. It is
        empty for a call of something else."""
        if _class_of(call) == GROUPS:
            group = self._value(_keyword(call, "name"))
            return "" if group in self._used else f"{GROUPS}.{group}"
        function = call.func
        owner = function.value if isinstance(function, ast.Attribute) else function
        if not isinstance(owner, ast.Name):
            return ""
        maker = self._made.get(owner.id)
        if maker is not None and _class_of(maker) in self._known:
            return f"{self._named(maker)}.{function.attr if isinstance(function, ast.Attribute) else 'call'}"
        return self._named(call) if owner.id in self._known else ""

    def _named(self, call: ast.Call) -> str:
        name, number = _class_of(call), self._numbers.get(id(call), 1)
        name = DATASETS[0] if name in DATASETS else name
        return name if number == 1 else f"{name}.{number}"

    def _arguments(self, call: ast.Call, prefix: str) -> Iterator[Given]:
        if _class_of(call) in DATASETS[1:]:
            yield self._given(f"{prefix}.class", call, _class_of(call))
        named = [(str(number), value) for number, value in enumerate(call.args)]
        named += [(one.arg, one.value) for one in call.keywords if one.arg]
        for key, value in named:
            yield from self._argument(f"{prefix}.{key}", value)

    def _argument(self, key: str, node: ast.expr) -> Iterator[Given]:
        if isinstance(node, ast.List) and node.elts and all(isinstance(one, ast.Call) for one in node.elts):
            return  # calls of their own
        literal = self._literals.get(node.id) if isinstance(node, ast.Name) else None
        node = literal if isinstance(literal, ast.Dict) else node
        last = key.rpartition(".")[2]
        group = self._groups.get(str(self._value(node))) if last == GROUP else None
        maker = self._made.get(node.id) if isinstance(node, ast.Name) else node
        if group is not None:
            yield from self._arguments(group, key)
        elif (
            isinstance(node, ast.Dict)
            and node.keys
            and all(isinstance(one, ast.Constant) for one in node.keys)
        ):
            for name, item in zip(node.keys, node.values, strict=True):
                yield self._given(f"{key}.{name.value}", item)  # type: ignore[union-attr]
        elif not isinstance(maker, ast.Call) or (last == "ranks" and self._value(node) is not None):
            yield self._given(key, node)
        elif _class_of(maker) == MESH:
            yield from self._arguments(maker, key)
        elif (
            isinstance(maker.func, ast.Name)
            and maker.func.id in self._imported
            and maker.func.id[:1].isupper()
        ):
            yield self._given(key, node, maker.func.id)
            if key.split(".")[-2] in WITH_OBJECTS:
                yield from self._arguments(maker, key)
        else:
            yield self._given(key, maker if node is maker else node, None)

    def _value(self, node: ast.expr | None) -> Any:
        """Returns the value of a literal, of a name that stands for one, of a sum of such numbers, or of
        `range`; None if it is unknown. An imported class is its name."""
        if isinstance(node, ast.Name) and node.id not in self._literals:
            return node.id if node.id in self._imported and node.id[:1].isupper() else None
        if isinstance(node, ast.Name):
            node = self._literals[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            one, other = self._value(node.left), self._value(node.right)
            are_numbers = isinstance(one, int) and isinstance(other, int) and other
            return OPERATORS[type(node.op)](one, other) if are_numbers else None
        if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name):
            inner = [self._value(one) for one in node.args]
            if node.func.id == "range" and all(isinstance(one, int) and one < 1 << 20 for one in inner):
                return list(range(*inner))
            return inner[0] if node.func.id == "list" else None
        try:
            return None if node is None else ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None


def _loops(
    node: ast.AST, made: dict[str, ast.Call], is_inside: bool, outer: ast.expr | None
) -> Iterator[tuple[str, ast.expr]]:
    """Yields the numbers that end the loop over a `DataLoader`, and that of the loop around it."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.For):
            over = one.iter
            if isinstance(over, ast.Call) and _class_of(over) in ("enumerate", "tqdm") and over.args:
                over = over.args[0]
            maker = made.get(over.id) if isinstance(over, ast.Name) else None
            is_loader = maker is not None and _class_of(maker) == "DataLoader"
            is_range = isinstance(over, ast.Call) and _class_of(over) == "range" and len(over.args) == 1
            around = over.args[0] if isinstance(over, ast.Call) and is_range and not is_inside else outer
            yield from _loops(one, made, is_inside or is_loader, around)
            if is_loader and outer is not None:
                yield "loop.epochs", outer
            continue
        if is_inside and isinstance(one, ast.If) and any(isinstance(step, ast.Break) for step in one.body):
            test = one.test
            if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.GtE, ast.Eq)):
                yield "loop.steps", test.comparators[0]
        yield from _loops(one, made, is_inside, outer)


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, item in zip(target.elts, value.elts, strict=False):
                if isinstance(one, ast.Name):
                    yield one.id, item


def _class_of(call: ast.Call) -> str:
    """Returns the name of the class or function that is called; that of the class for `Class.from_sizes`."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute):
        owner = function.value
        is_class = isinstance(owner, ast.Name) and owner.id[:1].isupper()
        return owner.id if is_class and isinstance(owner, ast.Name) else function.attr
    return ""


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)
