"""`ship`: nodes that share no file system with the launcher. The hosts are network namespaces in which the home
folder and the launcher's folder are private."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import LONG, THREE, Start, rows_of, wait, written

from meshctl.engines.engine import CannotStart
from meshctl.engines.forwarding import EventForwarding, ForwardedEvents
from meshctl.engines.remote import script_of
from meshctl.engines.shipping import ARCHIVE, check_code, check_size, pack, shipped_files, unpack
from meshctl.plan.model import Plan
from meshctl.plan.resolve import resolve
from meshctl.recipe.load import load
from meshctl.run.directory import RunDir
from meshctl.run.events import Follower, Journal, StepReport
from tests.cli.commands import meshctl
from tests.cli.small_launch import PARTS, RECIPE
from tests.engines import namespaces
from tests.engines.namespaces import Hosts
from tests.engines.node.hub_server import serving
from tests.engines.test_ssh import LEASE, is_empty, on_hosts

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The launcher's folder, which no host sees."""
    return tmp_path_factory.mktemp("launcher")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home folder on each host."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, private: Path, home: Path) -> Iterator[Hosts]:
    with namespaces.hosts(tmp_path_factory.mktemp("hosts"), 3, [private, home]) as found:
        yield found


@pytest.fixture
def ship(hosts: Hosts, home: Path) -> list[str]:
    """The overrides of a shipped run."""
    return [*hosts.options, LEASE, "engine.ssh.ship=true", f"engine.ssh.setup=['export HOME={home}']"]


@pytest.fixture
def folder(private: Path, request: pytest.FixtureRequest) -> Path:
    found = private / request.node.name
    found.mkdir()
    return written(found, THREE)


def leftovers() -> list[Path]:
    return list(Path("/tmp").glob("meshctl-shipped-*"))


def are_empty(hosts: Hosts, limit_s: float) -> None:
    """Waits until no process and no copy is left on any host."""
    assert is_empty(hosts, limit_s)
    wait(lambda: not leftovers(), "the end of all copies", 20)


@on_hosts
def test_a_shipped_run_equals_one_here_and_leaves_its_files_on_the_hosts(
    hosts: Hosts, home: Path, ship: list[str], folder: Path
) -> None:
    lines = "components.trainer.args.mood=slow", "run.steps=40"
    there = meshctl(folder, "launch", "recipe.yaml", *lines, *ship)
    assert there.returncode == 0, there.stderr
    assert "note[MC640]: each node keeps its files of a checkpoint, below ~/meshctl-runs" in there.stderr
    found = rows_of(folder)
    [run] = (folder / "runs" / "small").iterdir()
    are_empty(hosts, 10)
    saved = []
    for number in range(3):
        own = hosts.root(number) / str(home)[1:] / "meshctl-runs" / "small" / run.name
        assert sorted(path.name for path in (own / "logs" / "two").glob("[0-9].log")) == [f"{number}.log"]
        kept = sorted(path.name for path in (own / "checkpoints").iterdir())
        assert kept == ["step-36", "step-38", "step-40"], kept
        saved += [path for path in (own / "checkpoints" / "step-40").rglob("*") if path.is_file()]
        assert not list((own / "events").glob("launcher*"))
        for path in (own / "checkpoints" / "step-40").rglob("*"):  # what the documentation says to do
            copy = run / "checkpoints" / "step-40" / path.relative_to(own / "checkpoints" / "step-40")
            if path.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
    assert saved and (run / "checkpoints" / "step-40" / "checkpoint.manifest.json").exists()
    again = meshctl(folder, "launch", str(run), "engine=loopback", "run.steps=42")
    assert again.returncode == 0, again.stderr
    both = rows_of(folder)
    assert both[:40] == found and [row["step"] for row in both] == list(range(1, 43))
    refused = meshctl(folder, "launch", str(run), *ship, "run.steps=44")
    assert refused.returncode == 4 and "cannot continue from a checkpoint" in refused.stderr, refused.stderr


@on_hosts
def test_after_any_end_no_copy_remains(hosts: Hosts, ship: list[str], folder: Path, start: Start) -> None:
    launch = start(folder, "launch", "recipe.yaml", *LONG, *ship)
    launch.until("^step 2")
    assert len(leftovers()) == 3
    launch.signal(signal.SIGKILL)
    launch.end()
    are_empty(hosts, 30)
    launch = start(folder, "launch", "recipe.yaml", *LONG, *ship, "components.trainer.args.mood=raises")
    code, output = launch.end()
    assert code == 5 and "error: two:1 failed in stage sum, step 2: ValueError: boom" in output, output
    are_empty(hosts, 30)
    for number in (signal.SIGKILL, signal.SIGINT):
        launch = start(folder, "launch", "recipe.yaml", *LONG, *ship)
        launch.until("^step 2")
        pid = hosts.processes(1)[0] if number == signal.SIGKILL else launch.pid
        os.kill(pid, number)
        code, output = launch.end()
        assert code == (5 if number == signal.SIGKILL else 130), output
        are_empty(hosts, 30)


HUB = """
name: hub
groups: {train: {ranks: 4, device_type: cpu}}
cluster: {nodes: 2}
components:
  chats: {_target_: meshctl.data.Chat, group: train, args: {path: chats.jsonl, tokenizer: some/tiny}}
  actor: {_target_: meshctl.hf.Model, group: train, parallel: {fsdp_size: 4}, args: {model: some/tiny}}
pipeline:
  batch: {call: chats.next, samples: 4}
  metrics: {call: actor.update, in: batch}
run: {steps: 1}
"""
CHAT = {"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}]}


@on_hosts
def test_each_node_downloads_a_model_once(
    hosts: Hosts, home: Path, ship: list[str], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("transformers")
    from tests.hf.test_hub import small_model

    model = small_model(tmp_path_factory.mktemp("tiny"))
    (folder / "recipe.yaml").write_text(HUB)
    (folder / "chats.jsonl").write_text((json.dumps(CHAT) + "\n") * 4)
    with serving({"some/tiny": model}, hosts.head) as hub:
        setup = f"engine.ssh.setup=['export HOME={home} HF_ENDPOINT={hub.url}']"
        for downloads in (2, 2):  # the second run finds the model in the cache of each node
            done = meshctl(folder, "launch", "recipe.yaml", *ship, setup)
            assert done.returncode == 0, done.stderr
            assert hub.downloads("model.safetensors") == hub.downloads("tokenizer.json") == downloads
    for number in range(2):
        cache = hosts.root(number) / str(home)[1:] / ".cache/huggingface/hub/models--some--tiny"
        assert cache.is_dir()
    assert is_empty(hosts, 10)


# Without hosts


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe's folder with what is copied and what is not."""
    found = tmp_path / "recipe"
    files = ["recipe.yaml", "code/parts.py", "data/a.jsonl", "runs/small/1/plan.json", ".git/HEAD"]
    files += [
        "code/__pycache__/parts.pyc",
        "env/pyvenv.cfg",
        "env/lib/big.py",
        "notes/draft.txt",
        "large.bin",
    ]
    for name in files:
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(name)
    (found / "data" / "b.jsonl").symlink_to("a.jsonl")
    (found / ".meshctlignore").write_text("# drafts\nnotes/\n*.bin\n")
    return found


def test_caches_runs_and_ignored_files_are_not_copied(recipe: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with pack(recipe, recipe / "runs", {"plan.json": "{}"}) as archive:
        (there / ARCHIVE).write_bytes(archive.read())
    unpack(there / ARCHIVE, there)
    found = sorted(str(path.relative_to(there)) for path in there.rglob("*") if not path.is_dir())
    copied = [".meshctlignore", "code/parts.py", "data/a.jsonl", "data/b.jsonl", "recipe.yaml"]
    assert found == [*(f"code/{name}" for name in copied), "plan.json"]
    assert (there / "code" / "data" / "b.jsonl").read_text() == "data/a.jsonl"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside"])
def test_a_link_out_of_the_folder_is_refused(recipe: Path, target: str) -> None:
    (recipe / "data" / "out").symlink_to(target)
    with pytest.raises(CannotStart, match=r"data/out is a link out of the recipe's folder"):
        list(shipped_files(recipe, recipe / "runs"))
    (recipe / ".meshctlignore").write_text("data/out\n")
    assert recipe / "data" / "out" not in list(shipped_files(recipe, recipe / "runs"))


def test_a_large_folder_is_refused_with_what_is_large(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_size(recipe, recipe / "runs")
    monkeypatch.setattr("meshctl.engines.shipping.SHIPPED_BYTES_MAX", 30)
    with pytest.raises(
        CannotStart, match=r"and 30 B are allowed; the largest are .meshctlignore, code, data: "
    ):
        check_size(recipe, recipe / "runs")


@pytest.mark.parametrize(
    "entry",
    [{"name": "../out"}, {"name": "/etc/out"}, {"name": "a", "type": tarfile.SYMTYPE, "linkname": "/etc"}],
)
def test_an_archive_cannot_write_outside_of_its_folder(tmp_path: Path, entry: dict[str, object]) -> None:
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
        info = tarfile.TarInfo()
        for key, value in entry.items():
            setattr(info, key, value)
        tar.addfile(info, io.BytesIO())
    if str(entry["name"]).startswith("/"):
        unpack(tmp_path / ARCHIVE, tmp_path / "there")
        assert (tmp_path / "there" / "etc" / "out").exists()
    else:
        with pytest.raises(tarfile.TarError):
            unpack(tmp_path / ARCHIVE, tmp_path / "there")


def test_the_script_receives_the_archive_and_removes_it(tmp_path: Path) -> None:
    show = 'cat "$2/archive"; echo; echo "$2"; sleep 1000'
    script = script_of([], ["sh", "-c", show, "-"], is_shipped=True)
    process = subprocess.Popen(
        ["sh", "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin and process.stdout
    process.stdin.write("secret\n7\nARCHIVE")
    process.stdin.flush()
    assert process.stdout.readline() == "ARCHIVE\n"
    folder = Path(process.stdout.readline().strip())
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    process.stdin.close()
    assert process.wait(30) == -signal.SIGTERM
    process.stdout.close()
    wait(lambda: not folder.exists(), "the end of the folder", 20)


def test_a_part_of_an_archive_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", script_of([], ["true"], is_shipped=True)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        input="secret\n7\nARCH",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4 and "was not received whole" in done.stderr
    assert not list(tmp_path.iterdir())


def test_code_outside_of_the_recipe_folder_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "recipes"
    home.mkdir()
    (tmp_path / "parts.py").write_text(PARTS)
    (home / "recipe.yaml").write_text(RECIPE)
    loaded = load("recipes/recipe.yaml", (), tmp_path)
    plan: Plan = resolve(loaded.recipe, loaded.endpoints)
    message = rf"`parts.Maker` is in {re.escape(str(tmp_path))}/parts.py, which `ship` does not copy"
    with pytest.raises(CannotStart, match=message):
        check_code(plan, (str(home), str(tmp_path)))
    check_code(plan, (str(tmp_path),))


def test_events_reach_the_head_once_and_in_order(tmp_path: Path) -> None:
    node, head = RunDir(tmp_path / "node"), RunDir(tmp_path / "head")
    journal = Journal(node.journal("train-0"), "train", 0)
    journal.write("phase", phase="earlier")
    forwarding, forwarded = EventForwarding(node.events), ForwardedEvents(head)
    follower, found = Follower(head.events), []
    for step in range(1, 3001):
        journal.write_step(StepReport(step, stages={f"stage{n}": 1.0 for n in range(20)}))
        if step % 700 == 0 or step == 3000:
            for message in forwarding.messages(0):
                forwarded.add(message["who"], message["lines"])
            found += [event.step for event in follower.in_order()]
    assert found == list(range(1, 3001))
    assert len(list(node.events.iterdir())) == 1 and len(list(head.events.iterdir())) > 1


def test_events_of_nodes_that_a_full_disk_takes_in_part_are_written_once(tmp_path: Path) -> None:
    head = RunDir(tmp_path)
    forwarded, limits = ForwardedEvents(head), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (25, limits[1]))
    try:
        forwarded.add("train-0", ["first line\n", "second line\n", "third line\n"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert head.journal("train-0").stat().st_size == 25
    forwarded.add("train-0", ["last line\n"])
    assert head.journal("train-0").read_text() == "first line\nsecond line\nthird line\nlast line\n"


@pytest.mark.parametrize("who", ["../../etc/train-0", "launcher", "train-0.1"])
def test_a_node_sends_events_of_workers_only(who: str, tmp_path: Path) -> None:
    ForwardedEvents(RunDir(tmp_path / "head")).add(who, ["{}\n"])
    assert not list(tmp_path.rglob("*.jsonl"))
