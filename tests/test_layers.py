"""The house's rules about imports, held by reading every file: what may know what, and where each third-party
library lives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.paths import PACKAGE, ROOT
from tests.sources import Import, modules

LAYERS = {
    "topology": 0,
    "network": 0,
    "run": 0,
    "text": 0,
    "diagnostics": 0,
    "recipe": 1,
    "plan": 2,
    "foreign": 2,
}
LAYERS |= {"engines": 3, "view": 3, "trackers": 3, "runtime": 3, "components": 3, "cli": 4}
LAYERS |= {"agents": 3, "losses": 3, "data": 3, "sampling": 3, "hf": 3, "rewards": 3, "vllm": 3}
"""Folder -> layer; the modules at the top of the package are below layer 0."""
GROUND = ("text", "topology", "network", "run", "diagnostics")
"""Layer 0 has an order of its own: each of these folders may import those before it."""
SIBLINGS = {("components", "runtime"), ("components", "data"), ("losses", "runtime"), ("data", "runtime")}
SIBLINGS |= {("hf", "runtime"), ("hf", "losses"), ("hf", "data")}
SIBLINGS |= {("rewards", "runtime"), ("rewards", "data")}
SIBLINGS |= {("vllm", "runtime"), ("vllm", "data"), ("vllm", "sampling")}
SIBLINGS |= {("agents", "runtime"), ("agents", "data"), ("agents", "sampling")}
SIBLINGS |= {("sampling", "runtime"), ("sampling", "data"), ("hf", "sampling")}
"""Pairs (importer, imported) that are allowed within layer 3."""
NEVER = {
    (worker, "recipe")
    for worker in ("agents", "runtime", "components", "losses", "data", "sampling", "hf", "rewards", "vllm")
}
"""A worker knows the plan, not the YAML."""

HOMES = {
    "hydra": {"recipe"},
    "omegaconf": {"recipe"},
    "yaml": {"recipe", "foreign"},
    "rich": {"view"},
    "typer": {"cli"},
    "torch": {
        "agents",
        "runtime",
        "components",
        "engines",
        "losses",
        "data",
        "sampling",
        "hf",
        "rewards",
        "vllm",
    },
    "transformers": {"hf"},
    "peft": {"hf"},
    "vllm": {"vllm"},
    "safetensors": {"hf", "vllm"},
    "numpy": {"topology", "runtime", "components"},
    "msgpack": {"runtime"},
    "aiohttp": {"agents"},
    "math_verify": {"rewards"},
    "reasoning_gym": {"rewards"},
    "ray": {"engines"},
    **{library: {"trackers"} for library in ("tensorboard", "wandb", "mlflow", "trackio")},
}
INSIDE_FUNCTIONS = {
    ("package", "packaging"),
    ("cli", "torch"),
    ("topology", "torch"),
    ("runtime", "tensordict"),
}
INSIDE_FUNCTIONS |= {("engines", library) for library in ("huggingface_hub", "datasets", "tqdm")}
INSIDE_FUNCTIONS |= {("vllm", "transformers"), ("view", "pandas")}
INSIDE_FUNCTIONS |= {("data", library) for library in ("transformers", "datasets", "pyarrow")}
"""Where a library may be loaded on use: by a command that starts something, where torch's mesh is made, and
if it need not be there."""


def imports() -> list[Import]:
    return [found for module in modules().values() for found in module.imports]


def our_imports() -> list[Import]:
    return [found for found in imports() if found.top == "meshctl"]


def their_imports() -> list[Import]:
    known = (*sys.stdlib_module_names, "meshctl")
    return [found for found in imports() if found.top not in known]


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


def test_every_folder_has_a_layer() -> None:
    assert len(our_imports()) > 20 and len(their_imports()) > 5
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(LAYERS)


def test_imports_point_down() -> None:
    wrong = [
        str(found)
        for found in our_imports()
        if folder(found.name) and not allowed(folder(f"meshctl.{found.home}"), folder(found.name))
    ]
    assert not wrong


def test_each_library_has_one_home() -> None:
    def at_home(found: Import) -> bool:
        on_use = found.deferred and (found.home, found.top) in INSIDE_FUNCTIONS
        return on_use or found.home in HOMES.get(found.top, ())

    assert not [str(found) for found in their_imports() if not at_home(found)]


HEAVY = ("torch", "hydra", "omegaconf", "yaml", "rich", "typer", "numpy")


def loaded_by(code: str) -> set[str]:
    """Which of the heavy libraries a fresh interpreter has loaded after `code`."""
    watch = f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    report = f"print('LOADED', *[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", watch + report], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr + done.stdout
    return set(done.stdout.splitlines()[-1].split()[1:])


def loaded_by_command(*words: str) -> set[str]:
    words = ("meshctl", *words)
    return loaded_by(f"from meshctl.cli.app import main; sys.argv = {[*words]}; sys.exit(main())")


def test_the_ground_loads_nothing_heavy() -> None:
    assert not loaded_by("from meshctl import DeviceMesh; DeviceMesh.from_sizes(tp_size=2).at(1)['tp']")


@pytest.mark.parametrize(
    "command",
    ["validate", "launch --dry-run", "config --origins", "show-topology", "show-topology --format html"],
)
def test_reading_commands_never_load_torch(command: str) -> None:
    """A picture as text is drawn without rich, too."""
    never = {"torch", "rich", "numpy"} if command == "show-topology" else {"torch"}
    assert not never & loaded_by_command(*command.split(), "recipes/grpo_arithmetic.yaml")
