"""The types of recipe values about steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.editor_schema_parts import OPEN, Schema, whole
from meshctl.recipe.field_types import Integer, integer
from meshctl.recipe.scalars import SECONDS_SCHEMA, seconds_in, shown
from meshctl.text.english import counted

if TYPE_CHECKING:
    from meshctl.recipe.field_reader import FieldReader


class StepsOrTime(Integer):
    """A number of steps, an integer, or a time with units, 90s, 10m, 1h30m, which is read as a float."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if isinstance(node.value, str) and node.value and node.value[-1].isalpha():
            if (seconds := seconds_in(node.value)) and not node.value.isdigit():
                return seconds
            reader.expected("a number of steps, or a time such as 10m", node, path)
            return None
        return super().read(reader, node, path)

    def schema(self) -> Schema:
        time = {"type": "string", "pattern": f"{SECONDS_SCHEMA}|{OPEN}"}
        return {"anyOf": [whole(self.min, self.max), time]}


class Window(Integer):
    """A first and a last step, [FIRST, LAST], or one step."""

    empty: ClassVar[Any] = ()

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if not node.is_list:
            step = integer(reader, node, path, "[FIRST, LAST], or one step", self.min, self.max)
            return None if step is None else (step, step)
        if len(node.value) != 2:
            message = f"`{shown(path)}` has {counted(len(node.value), 'number')} in place of two"
            reader.report(path, "MC102", message, node.span, help="write [FIRST, LAST]")
            return None
        ends = [super(Window, self).read(reader, item, path) for item in node.value]
        if None in ends:
            return None
        first, last = ends
        if first > last:
            message = f"`{shown(path)}` ends with step {last}, before its first step {first}"
            reader.report(path, "MC102", message, node.span, help=f"write [{last}, {first}]")
            return None
        return first, last

    def schema(self) -> Schema:
        step = whole(self.min, self.max)
        return {"anyOf": [step, {"type": "array", "items": step, "minItems": 2, "maxItems": 2}]}
