"""HTML and SVG as text in which nothing is markup by accident.

tag("td", "a < b", class_="name")          '<td class="name">a &lt; b</td>'
tag("tr", tag("td", "1"), tag("td", "2"))  an element in an element
"""

from __future__ import annotations

from collections.abc import Iterable

from meshctl.view.pictures.svg import escaped

VOID = frozenset(("br", "input"))


class Markup(str):
    """Text that is HTML already. All other text is escaped."""

    __slots__ = ()


Child = str | None | Iterable["Child"]
Attribute = str | float | bool | None


def tag(name: str, *children: Child, **attributes: Attribute) -> Markup:
    """Returns an element. `class_` stands for `class`, and `data_x` for `data-x`; an attribute that is None
    or False is left out."""
    given = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            given += f" {key.rstrip('_').replace('_', '-')}"
            text = f"{value:.6g}" if isinstance(value, float) else escaped(str(value))
            given += "" if value is True else f'="{text}"'
    end = "" if name in VOID else f"</{name}>"
    return Markup(f"<{name}{given}>{inner(*children)}{end}")


def inner(*children: Child) -> Markup:
    """Returns children one after another."""
    return Markup("".join(map(_text, children)))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, str):
        return child if isinstance(child, Markup) else escaped(child)
    return inner(*child)
