"""The house's rules about imports, held by reading every file: what may know what, and where each third-party
library lives."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.paths import PACKAGE, ROOT

LAYERS = {"topology": 0, "network": 0, "run": 0, "text": 0, "diagnostics": 0, "recipe": 1, "plan": 2}
LAYERS |= {"engines": 3, "view": 3, "trackers": 3, "runtime": 3, "components": 3, "cli": 4}
LAYERS |= {"losses": 3, "data": 3, "hf": 3, "rewards": 3, "vllm": 3}
"""Folder -> layer; the modules at the top of the package are below layer 0."""
GROUND = ("text", "topology", "network", "run", "diagnostics")
"""Layer 0 has an order of its own: each of these folders may import those before it."""
SIBLINGS = {("components", "runtime"), ("losses", "runtime"), ("data", "runtime")}
SIBLINGS |= {("hf", "runtime"), ("hf", "losses"), ("hf", "data")}
SIBLINGS |= {("rewards", "runtime"), ("rewards", "data")}
SIBLINGS |= {("vllm", "runtime"), ("vllm", "data")}
"""Pairs (importer, imported) that are allowed within layer 3."""
NEVER = {
    (worker, "recipe") for worker in ("runtime", "components", "losses", "data", "hf", "rewards", "vllm")
}
"""A worker knows the plan, not the YAML."""

HOMES = {
    "hydra": {"recipe"},
    "omegaconf": {"recipe"},
    "yaml": {"recipe"},
    "rich": {"view"},
    "typer": {"cli"},
    "torch": {"runtime", "components", "engines", "losses", "data", "hf", "rewards", "vllm"},
    "transformers": {"hf"},
    "peft": {"hf"},
    "vllm": {"vllm"},
    "safetensors": {"hf"},
    "numpy": {"topology", "runtime", "components"},
    "msgpack": {"runtime", "rewards"},
    "math_verify": {"rewards"},
    "reasoning_gym": {"rewards"},
    "ray": {"engines"},
    **{library: {"trackers"} for library in ("tensorboard", "wandb", "mlflow", "trackio")},
}
INSIDE_FUNCTIONS = {("cli", "torch"), ("topology", "torch"), ("runtime", "tensordict")}
INSIDE_FUNCTIONS |= {("engines", library) for library in ("huggingface_hub", "datasets", "tqdm")}
INSIDE_FUNCTIONS |= {("vllm", "transformers"), ("view", "pandas")}
INSIDE_FUNCTIONS |= {("data", library) for library in ("transformers", "datasets", "pyarrow")}
"""Where a library may be loaded on use: by a command that starts something, where torch's mesh is made, and
if it need not be there."""


@dataclass(frozen=True)
class Import:
    path: Path
    line: int
    name: str
    """The dotted module, or module and attribute."""
    deferred: bool
    """Inside a function."""

    @property
    def home(self) -> str:
        """The folder, or for the ground the file; `python -m meshctl` is a door of the command line."""
        part = self.path.relative_to(PACKAGE).parts
        return part[0] if len(part) > 1 else "cli" if self.path.stem == "__main__" else self.path.stem

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.name}"


def imports_of(path: Path) -> Iterator[Import]:
    yield from _walk(path, ast.parse(path.read_text(encoding="utf-8")), deferred=False)


def _walk(path: Path, node: ast.AST, deferred: bool) -> Iterator[Import]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (Import(path, node.lineno, alias.name, deferred) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
        yield from (
            Import(path, node.lineno, f"{node.module}.{alias.name}", deferred) for alias in node.names
        )
    for child in ast.iter_child_nodes(node):
        yield from _walk(path, child, deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def all_imports() -> list[Import]:
    return [found for path in sorted(PACKAGE.rglob("*.py")) for found in imports_of(path)]


def our_imports() -> list[Import]:
    return [found for found in all_imports() if found.name.split(".")[0] == "meshctl"]


def their_imports() -> list[Import]:
    known = (*sys.stdlib_module_names, "meshctl")
    return [found for found in all_imports() if found.name.split(".")[0] not in known]


def folder(name: str) -> str:
    """Of one of our modules; empty for the ground."""
    part = name.split(".")[1:2]
    return part[0] if part and part[0] in LAYERS else ""


def allowed(importer: str, imported: str) -> bool:
    if importer == imported or (importer, imported) in SIBLINGS:
        return True
    if importer in GROUND and imported in GROUND:
        return GROUND.index(imported) < GROUND.index(importer)
    return (importer, imported) not in NEVER and LAYERS.get(imported, 0) < LAYERS.get(importer, 0)


def test_there_is_something_to_look_at() -> None:
    assert len(our_imports()) > 20 and len(their_imports()) > 5


def test_every_folder_has_a_layer() -> None:
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(
        LAYERS
    )


def test_imports_point_down() -> None:
    wrong = [
        str(found)
        for found in our_imports()
        if folder(found.name) and not allowed(folder(f"meshctl.{found.home}"), folder(found.name))
    ]
    assert not wrong


def test_each_library_has_one_home() -> None:
    def at_home(found: Import) -> bool:
        library = found.name.split(".")[0]
        return found.home in HOMES.get(library, ()) or (
            found.deferred and (found.home, library) in INSIDE_FUNCTIONS
        )

    assert not [str(found) for found in their_imports() if not at_home(found)]


def test_no_circles_between_modules() -> None:
    modules = {
        path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
    }
    names = set(modules.values())
    edges: dict[str, set[str]] = {name: set() for name in names}
    for found in our_imports():
        target = next((name for name in (found.name, found.name.rpartition(".")[0]) if name in names), None)
        if target and target != modules[found.path]:
            edges[modules[found.path]].add(target)
    while leaves := [name for name, targets in edges.items() if not targets]:
        for leaf in leaves:
            del edges[leaf]
        for targets in edges.values():
            targets.difference_update(leaves)
    assert not edges


HEAVY = ("torch", "hydra", "omegaconf", "yaml", "rich", "typer", "numpy")


def loaded_by(code: str) -> set[str]:
    """Which of the heavy libraries a fresh interpreter has loaded after `code`."""
    watch = f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    report = f"print('LOADED', *[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", watch + report], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr + done.stdout
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "code", ["import meshctl", "from meshctl import DeviceMesh; DeviceMesh.from_sizes(tp_size=2).at(1)['tp']"]
)
def test_the_ground_loads_nothing_heavy(code: str) -> None:
    assert loaded_by(code) == set()


READING = ["validate", "launch --dry-run", "config", "config --origins"]
READING += ["show-topology", "show-topology --format json", "show-topology --format html"]


@pytest.mark.parametrize(
    "command", [[*command.split(), "recipes/grpo_arithmetic.yaml"] for command in READING]
)
def test_reading_commands_never_load_torch(command: list[str]) -> None:
    assert "torch" not in loaded_by(
        f"from meshctl.cli.app import main; sys.argv = {['meshctl', *command]}; sys.exit(main())"
    )


def test_pictures_are_drawn_without_rich() -> None:
    command = ["meshctl", "show-topology", "recipes/grpo_arithmetic.yaml"]
    assert not loaded_by(f"from meshctl.cli.app import main; sys.argv = {command}; sys.exit(main())") & {
        "rich",
        "numpy",
        "torch",
    }
