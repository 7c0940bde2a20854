"""The pages of a plan and of runs, and the SVG, in a headless Chromium (Debian's, driven by playwright). One browser
serves all tests; without one, they are skipped. No page may write to the console or send a request."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, count, pairwise
from pathlib import Path
from typing import Any

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.views.selection import Selection
from meshctl.plan.views.topology import Topology, topology
from meshctl.topology.mesh import DeviceMesh
from meshctl.view.formatting import size
from meshctl.view.pictures import html, svg
from meshctl.view.report_page.page import draw
from meshctl.view.report_page.record import RunRecord
from tests.hang import HANG_S
from tests.plan.links import links, partners
from tests.view.pictures.plans import (
    ODD,
    PLANS,
    everything,
    hundred_thousand,
    many,
    odd,
    program,
    sixteen,
    small,
    two_sources,
)
from tests.view.report_page.made import MadeRun, done, failed, plan

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "no-sandbox disable-gpu disable-dev-shm-usage disable-background-networking disable-component-update "
    "disable-sync no-first-run"
)
CHECKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'"
    )
    with playwright.sync_playwright() as driver:
        args = [f"--{flag}" for flag in FLAGS.split()]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=args, timeout=HANG_S * 1000)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def noted() -> list[str]:
    """The messages on the console of the pages, and the addresses that the pages have requested."""
    return []


@pytest.fixture(scope="module")
def context(browser: Any, noted: list[str]) -> Callable[..., Any]:
    def ask(request: Any) -> None:
        if not (request.is_navigation_request() or request.url.startswith("data:")):
            noted.append(f"request: {request.url}")

    def make(width: int, **look: Any) -> Any:
        made = browser.new_context(viewport={"width": width, "height": 900}, **look)
        made.set_default_timeout(HANG_S * 1000)
        made.on("console", lambda message: noted.append(f"console: {message.text}"))
        made.on("weberror", lambda error: noted.append(f"error: {error.error}"))
        made.on("dialog", lambda dialog: (noted.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        made.on("request", ask)
        return made

    return make


@pytest.fixture(scope="module")
def tab(context: Callable[..., Any]) -> Any:
    return context(1280).new_page()


@pytest.fixture
def opened(tab: Any, context: Callable[..., Any], noted: list[str], tmp_path: Path) -> Iterator[Open]:
    """Opens a topology, or a text of SVG or HTML, as a page with the URL fragment `hash`. Pages without special
    settings share one tab."""
    numbers, special = count(), list[Any]()

    def open(
        drawn: Topology | str, hash: str = "", first: Selection = Selection(), width: int = 1280, **look: Any
    ) -> Any:
        text = drawn if isinstance(drawn, str) else html.draw(drawn, first)
        file = tmp_path / f"page{next(numbers)}.{'svg' if text.startswith('<svg') else 'html'}"
        file.write_text(text, encoding="utf-8")
        page = tab
        if look or width != 1280:
            special.append(context(width, **look))
            page = special[-1].new_page()
        page.goto(file.as_uri() + hash)
        return page

    yield open
    for made in special:
        made.close()
    tab.goto("about:blank")
    assert noted == []


def wrong(page: Any, check: str) -> Any:
    """Returns the result of one of the checks."""
    return page.evaluate(f"(() => {{ {CHECKS}\nreturn {check}(); }})()")


def texts(page: Any, selector: str, what: str = "textContent") -> list[str]:
    return list(page.eval_on_selector_all(selector, f"all => all.map((one) => one.{what})"))


def chosen(page: Any, role: str) -> set[str]:
    return set(texts(page, f"#kinds .tile[data-role={role}]", "dataset.worker"))


def address(page: Any) -> str:
    return str(page.evaluate("location.href"))


def elements(page: Any) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


# Its answers are Python's


def described(page: Any, names: list[str], samples: int, most: int = 10_000) -> list[dict[str, Any]]:
    ask = "([names, samples, most]) => names.map((name) => describe(topology, name, samples, most))"
    return list(page.evaluate(ask, [names, samples, most]))


def workers(plan: Plan, most: int = 10_000) -> list[str]:
    """Returns all workers of a group; for a large group, the first, the last and some between."""
    return [
        f"{group.name}:{rank}"
        for group in plan.groups
        for rank in sorted({*range(0, group.workers, max(1, group.workers // most)), group.workers - 1})
    ]


@pytest.mark.parametrize(
    ("name", "few", "totals"), [("everything", 99, (97, 3)), ("hundred_thousand", 20, (1_000_003,))]
)
def test_placement_and_meshes(opened: Open, name: str, few: int, totals: tuple[int, ...]) -> None:
    plan = PLANS[name]()
    page = opened(topology(plan))
    for total in totals:
        for found in described(page, workers(plan, few), total, 64):
            worker = plan.worker(found["group"], found["rank"])
            seen = tuple(found[key] for key in ("jobRank", "node", "localRank", "devices"))
            assert seen == (worker.job_rank, worker.node, worker.local_rank, list(worker.devices))
            for mesh in found["meshes"]:
                check_mesh(plan.component(mesh["component"]).mesh, mesh, found["rank"], total)
            assert all(len(route["ranks"]) <= 64 for route in found["routes"]), "of very many, the first"


def check_mesh(mesh: DeviceMesh, found: dict[str, Any], rank: int, total: int) -> None:
    mine = mesh.sample_range(total, rank)
    views = {dim: mesh.dim_rank(rank, dim) for dim in ("data", "ulysses", "ep_fsdp", "ep", "etp")}
    assert found["coordinate"] == {**mesh.coordinate(rank), **views}
    assert (found["dataRank"], found["slice"]) == (mesh.data_rank(rank), [mine.start, mine.stop])
    assert tuple(found["stages"]) == mesh.pp_stages_of(rank)
    for dim, peers in found["peers"].items():
        along = mesh.ranks_along(dim, rank)
        assert peers["ranks"] == sorted(along[:64]), dim
        if mesh.world_size < 100:
            assert list(mesh.process_groups(dim))[peers["group"]] == along, dim


def test_routes(opened: Open) -> None:
    plan = everything()
    drawn = topology(plan)
    page = opened(drawn)
    for samples in (1, 16, 97):
        seen = {
            (each["group"], each["rank"], route["route"], route["role"]): route
            for each in described(page, workers(plan), samples)
            for route in each["routes"]
        }
        for route, flow in zip(plan.routes, drawn.routes, strict=True):
            sent, received = partners(links(plan, route, flow.samples or samples))
            for name, role, expected in (
                (flow.producer, "sends", sent),
                (flow.consumer, "receives", received),
            ):
                for rank in range(plan.component(name).mesh.world_size):
                    found = seen[plan.component(name).group, rank, route.name, role]
                    assert found["agrees"] and found["count"] == len(found["ranks"])
                    assert found["ranks"] == sorted(expected.get(rank, ())), (route.name, role, rank, samples)


# Choosing


def test_a_click_chooses_and_hovering_previews_and_escape_clears(opened: Open) -> None:
    plan = everything()
    page = opened(topology(plan))
    panel = page.locator("#worker")
    assert panel.inner_text().startswith("Worker")
    page.click('#kinds [data-worker="train:3"]')
    assert address(page).endswith("#train:3") and chosen(page, "self") == {"train:3"}
    assert "train 3 selected, node 0" in page.locator("#status").inner_text()
    worker, text = plan.worker("train", 3), panel.inner_text()
    assert re.search(rf"job rank\s+{worker.job_rank}\s+node\s+{worker.node}", text)
    for words in ("actor", "other", "pipeline stages 0 and 2 of 4", "receives scored -> metrics.scored",
                  "sends publish: actor to sampler"):  # fmt: skip
        assert words in text, words
    page.hover('#kinds [data-worker="judge:4"]')
    page.wait_for_function("document.querySelector('#worker h2').textContent.includes('judge:4')")
    assert "preview" in page.locator("#worker .top").inner_text() and address(page).endswith("#train:3")
    page.hover("h1")
    page.wait_for_function("document.querySelector('#worker h2').textContent.includes('train:3')")
    page.keyboard.press("Escape")
    assert "#" not in address(page) and not chosen(page, "self")
    assert page.locator("#status").inner_text() == "Nothing selected"


def test_a_dim_or_a_route_marks_its_peers(opened: Open) -> None:
    plan = everything()
    drawn = topology(plan)
    page = opened(drawn, "#train:5")
    mesh = plan.component("actor").mesh
    for dim in ("tp", "ulysses", "ep", "pp", "fsdp"):
        page.check(f'#worker input[value="dim actor {dim}"]')
        assert chosen(page, "peer") == {f"train:{rank}" for rank in mesh.ranks_along(dim, 5) if rank != 5}, (
            dim
        )
    assert set(texts(page, "#kinds .tile[data-role=peer] .tag")) == {"fsdp"}, "never color alone"
    page.check('#worker input[value="all actor"]')
    every = {rank for dim in mesh.mesh_dim_names for rank in mesh.ranks_along(dim, 5)} - {5}
    assert chosen(page, "peer") == {f"train:{rank}" for rank in every}
    number = next(number for number, flow in enumerate(drawn.routes) if flow.name == "batch -> rollouts")
    page = opened(drawn, "#rollout:2")
    page.check(f'#worker input[value="route {number} receives"]')
    _, received = partners(links(plan, plan.routes[number], drawn.routes[number].samples))
    assert chosen(page, "peer") == {f"rollout:{rank}" for rank in received[2]} - {"rollout:2"}
    assert page.locator(f'.picture [data-route="{number}"].on').count() == 2


def test_small_plans_and_what_they_leave_open(opened: Open) -> None:
    drawn = topology(small())
    flow = drawn.routes[0]
    mode = replace(flow.dispatch, mode="team.modes:BY_LENGTH")
    flows = (replace(flow, dispatch=mode, producers=0, consumers=0), *drawn.routes[1:])
    page = opened(replace(drawn, routes=flows), f"#{drawn.groups[0].name}:0")
    assert "samples; by BY_LENGTH decides which" in page.locator("#worker").inner_text()
    pipeline = page.locator("#pipeline").inner_text()
    assert "by BY_LENGTH" in pipeline and "? → ?" in pipeline
    page = opened(topology(program()))
    page.click("#kinds .tile")
    assert page.locator("#worker h2").inner_text().endswith("train:0")
    for amount in (0, 999, 1000, 999_499, 999_500, 12_345_678_901, 10**14):
        assert page.evaluate("(amount) => bytesOf(amount)", amount) == size(amount)
    boxes = opened(topology(two_sources(every=2))).locator("#pipeline .stage").all_inner_texts()
    assert [text.split()[1] for text in boxes if "ends the run" in text] == ["batch"]


def test_a_route_shows_the_transport_to_each_partner(opened: Open) -> None:
    drawn = topology(sixteen())
    for worker, name, how in (
        ("judge:2", "rollouts -> scored", "tcp"),
        ("judge:2", "scored -> compared.scored", "in process"),
        ("rollout:1", "batch -> rollouts", "in process, cuda ipc"),
        ("rollout:1", "publish: actor to sampler", "nccl"),
    ):
        routes = opened(drawn, f"#{worker}").locator("#worker .route")
        assert routes.filter(has_text=name).first.locator(".reach").inner_text() == how


def test_the_keyboard_alone(opened: Open) -> None:
    page = opened(topology(everything()))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the workers"
    for key in ("Enter", "Tab", "Tab"):
        page.keyboard.press(key)
    focused = "document.activeElement.dataset.worker"
    assert page.evaluate(focused) == "rollout:0"
    there = {
        **{"ArrowRight": "rollout:1", "End": "rollout:3", "ArrowDown": "critic:3"},
        **{"ArrowUp": "rollout:1", "Home": "rollout:0", "ArrowLeft": "rollout:0"},
    }
    for key, worker in there.items():
        page.keyboard.press(key)
        assert page.evaluate(focused) == worker, key
    assert page.locator('#kinds .kind:first-child .tile[tabindex="0"]').count() == 1
    page.keyboard.press("Enter")
    assert address(page).endswith("#rollout:0") and page.evaluate(focused) == "rollout:0"
    page.keyboard.press("PageDown")
    assert page.evaluate("document.activeElement.closest('[data-node]').dataset.node") == "1"
    page.keyboard.press(" ")
    assert address(page).endswith("#" + page.evaluate(focused))
    for _ in range(6):
        page.keyboard.press("Tab")
        assert wrong(page, "outline").startswith("solid 3px on ")


def test_the_address_and_the_first_selection(opened: Open) -> None:
    plan = everything()
    drawn, first = topology(plan), Selection(rank=("judge", 2))
    page = opened(drawn, first=first)
    assert chosen(page, "self") == {"judge:2"} and address(page).endswith("#judge:2")
    page.evaluate("location.hash = '#critic:1'")
    page.wait_for_function("document.querySelector('#kinds [data-role=self]').dataset.worker === 'critic:1'")
    assert chosen(opened(drawn, "#train:4", first), "self") == {"train:4"}, "the address wins"
    assert not chosen(opened(drawn, "#nobody:4"), "self")
    page = opened(drawn, first=Selection("actor", "tp"))
    assert texts(page, ".component[open]", "dataset.component") == ["actor"]
    tiles = '#kinds .tile[data-worker^="train:"]'
    shown = zip(texts(page, tiles, "dataset.worker"), texts(page, f"{tiles} .stripes"), strict=True)
    groups = enumerate(plan.component("actor").mesh.process_groups("tp"))
    assert dict(shown) == {f"train:{rank}": str(number) for number, ranks in groups for rank in ranks}


def test_a_mesh_is_drawn_when_it_is_opened(opened: Open) -> None:
    page = opened(topology(everything()), "#train:5")
    other = ".component[data-component=other]"
    page.click(f"{other} summary")
    page.wait_for_selector(f"{other} .tile")  # it is drawn after the click
    assert set(texts(page, f"{other} .tile", "dataset.worker")) == {f"train:{rank}" for rank in range(16)}
    page.click(f'{other} [data-worker="train:7"]')
    assert address(page).endswith("#train:7")


# Very much, very little, odd names


def test_a_hundred_thousand_devices_are_not_a_hundred_thousand_elements(opened: Open) -> None:
    plan = hundred_thousand()
    assert opened(topology(plan), first=Selection(node=9000)).locator('[data-node="9000"]').count() == 1
    page = opened(topology(plan))
    assert elements(page) < 3000
    page.click('#kinds [aria-expanded="false"] >> nth=1')
    assert elements(page) < 6000 and page.locator(".node").count() > 20
    page.click('#kinds [aria-label^="Next 64 of Nodes 2,500"]')
    assert page.locator('[data-node="2564"]').count() == 1
    page.fill('#kinds [aria-label="Node, of Nodes 0–2,499"]', "1234")
    page.keyboard.press("Tab")
    assert page.locator('[data-node="1234"] [data-worker="rollout:9872"]').count() == 1
    page.fill("#where", "train:777")
    page.keyboard.press("Enter")
    assert address(page).endswith("#train:777")
    assert page.evaluate("document.activeElement.dataset.worker") == "train:777"
    page = opened(topology(plan), "#train:777")
    page.check('#worker input[value="dim actor pp"]')
    nodes = {plan.node_of("train", rank) for rank in plan.component("actor").mesh.ranks_along("pp", 777)}
    shown = {int(node) for node in texts(page, "[data-node]", "dataset.node")}
    assert len(nodes & shown) == 8 and plan.node_of("train", 777) in shown, "peers are brought along"
    page.fill("#where", "train:65536")
    page.keyboard.press("Enter")
    assert page.locator("#refused").inner_text() == "There is no train:65536; train has the ranks 0 to 65535"
    assert page.get_attribute("#where", "aria-invalid") == "true" and address(page).endswith("#train:777")
    page = opened(many(200))
    before = page.locator(".component").count()
    assert elements(page) < 12_000 and "more stage" in page.inner_text("#pipeline .left")
    page.click("text=/Show .* more components/")
    assert page.locator(".component").count() > before


DRAWN = (
    "[...document.querySelectorAll('.component')].every((one) => one.querySelector('.body').children.length)"
)
"""Components are drawn after they are opened."""


def test_odd_names_are_text(opened: Open) -> None:
    drawn = odd()
    page = opened(drawn)
    assert page.title() == f"{drawn.name} · meshctl" and page.locator("h1").inner_text() == drawn.name
    assert page.locator("script").count() == 3
    warning = page.locator("#warnings li").inner_text()
    assert warning.startswith("MC320 <img src=x onerror=alert(1)> code is idle")
    for group in drawn.groups:
        if "\ud800" not in group.name:
            page.evaluate("(name) => choose(topology.worker(name))", f"{group.name}:0")
            assert page.locator("#worker h2 .mono").text_content() == f"{group.name}:0"
    page.evaluate("document.querySelectorAll('.component').forEach((one) => { one.open = true; })")
    page.wait_for_function(DRAWN)
    shown = " ".join(page.locator("body").inner_text().split())
    assert sum(" ".join(name.split()) in shown for name in ODD[2:9]) >= 6


# The pipeline, and the SVG

BOXES = """() => {
  const edge = document.querySelector('.picture').getBoundingClientRect();
  return [...document.querySelectorAll('.picture .stage')].map((one) => one.getBoundingClientRect())
    .map(({left, right, top, bottom}) => [left - edge.left, right - edge.left, top - edge.top, bottom - edge.top]);
}"""


def corners(drawn: str) -> list[tuple[float, float]]:
    """Returns the points at which a route turns, from its producer to its consumer."""
    points = [float(each) for each in re.findall(r"-?[\d.]+(?:e-?\d+)?", drawn)]
    x, start, across, stop, end = points[0], points[1], points[3], points[9], points[12]
    return [(x, start), (across, start), (across, stop), (end, stop)]


@pytest.mark.parametrize("width", [1280, 360])
def test_no_route_crosses_a_box_and_no_box_another(opened: Open, width: int) -> None:
    drawn = topology(everything())
    page = opened(drawn, width=width)
    boxes = page.evaluate(BOXES)
    wires = [corners(each) for each in texts(page, ".picture .edge", "getAttribute('d')")]
    assert len(boxes) == len(drawn.stages) + 1 and len(wires) == len(drawn.routes)
    for wire in wires:
        for (x0, y0), (x1, y1) in pairwise(wire):
            x, y = (x0 + x1) / 2, (y0 + y1) / 2
            assert not any(left < x < right and top < y < bottom for left, right, top, bottom in boxes)
    for box, other in combinations(boxes, 2):
        assert box[1] <= other[0] or other[1] <= box[0] or box[3] <= other[2] or other[3] <= box[2]
    assert "in process, cuda ipc, nccl" in page.inner_text("#pipeline .picture")
    cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert width < 1280 or page.eval_on_selector_all(".picture .wraps .aside", cut) == []


def test_the_svg_is_all_there(opened: Open) -> None:
    for drawn in (topology(everything()), odd()):
        assert wrong(opened(svg.draw(drawn)), "outside") == []


# For everybody


@pytest.mark.parametrize(
    ("look", "hash"),
    [({"color_scheme": "light"}, ""), ({"color_scheme": "dark"}, "#train:5"), ({"width": 360}, "#train:5")],
)
def test_everybody_can_read_it(opened: Open, look: dict[str, Any], hash: str) -> None:
    page = opened(many(12) if "width" in look else topology(everything()), hash, **look)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_for_function(DRAWN)
    for check in ("contrast", "nameless", "stray"):
        assert wrong(page, check) == [], check
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    ids = texts(page, "[id]", "id")
    assert len(ids) == len(set(ids))
    shown = "all => all.filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))"
    levels = page.eval_on_selector_all("h1, h2, h3", shown)
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    lanes = page.locator("#pipeline .scroll").first
    assert "width" in look or lanes.evaluate("(one) => one.scrollWidth <= one.clientWidth"), (
        "without scrolling"
    )


def test_what_a_screen_reader_reads_and_what_is_assumed(opened: Open) -> None:
    page = opened(topology(everything()), "#train:5")
    output = page.locator("body").aria_snapshot()
    for words in (
        "- banner:", "- main:", 'heading "everything" [level=1]', 'region "Placement":', 'region "Pipeline":', 'region "Components":',
        'region "Worker train:5":', 'grid "Node 0":', 'gridcell "train:5, node 1, cuda 1, actor and other" [selected]',
        'gridcell "train:4, node 1, cuda 0, actor and other, tp of train:5"', 'radio "all dims" [checked]', "- status:",
        'spinbutton "Samples of a batch"', 'textbox "Go to worker"', 'combobox "Color by"', 'button "Go to train:1"',
    ):  # fmt: skip
        assert words in output, words
    assert re.search(r'gridcell "cuda \S+, idle"', output)
    assert re.search(r'img "Pipeline of everything: 15 stages', output)
    page = opened(topology(everything()), "#rollout:0")
    page.fill("#samples", "40")
    panel = page.locator("#worker").inner_text()
    assert "where the recipe does not give them" in panel and re.search(r"samples \S+ of 64\n", panel)
    assert "of 40 samples 0–9" in panel and re.search(r"of 40, if the batch has them", panel)


def test_themes_forced_colors_and_print(opened: Open) -> None:
    page = opened(topology(everything()), color_scheme="dark")
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme light" and page.evaluate(color) != dark
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme dark" and page.evaluate(color) == dark
    page.wait_for_function("localStorage.getItem('meshctl-theme') === 'dark'")
    page = opened(topology(everything()), "#train:5", forced_colors="active", reduced_motion="reduce")
    style = "getComputedStyle(document.querySelector('%s')).%s"
    assert page.evaluate(style % ("#kinds [data-role=self]", "outlineStyle")) == "solid"
    assert page.evaluate(style % ("#kinds [data-role=peer]", "outlineStyle")) == "dashed"
    assert page.evaluate(style % (".picture .edge", "transitionDuration")) == "0s"
    page.emulate_media(media="print", forced_colors="none")
    visible = {part: page.is_visible(part) for part in ("#jump", "#theme", "#worker", "#kinds")}
    assert visible == {"#jump": False, "#theme": False, "#worker": True, "#kinds": True}


def test_without_a_script(opened: Open, tmp_path: Path) -> None:
    page = opened(topology(everything()), java_script_enabled=False)
    assert "needs JavaScript" in page.inner_text("body") and page.is_visible(".picture") is False
    page = opened(report(failed(tmp_path / "run")), java_script_enabled=False)
    assert page.locator("figure .curve").count() == 2 and page.locator(".lanes").count() == 1
    assert not page.locator("#filter").is_visible()
    assert "the last words" in page.locator("#faults").inner_text()


# The page of a run

LONG = "a_very_long_name_of_a_stage_that_somebody_has_chosen_without_a_thought"


def report(*made: MadeRun) -> str:
    return draw(
        [RunRecord.read(each.seen, f"seed: {n}\nvars: {{x: {'y' * 300}}}\n") for n, each in enumerate(made)]
    )


def test_every_run_fits_its_window(opened: Open, tmp_path: Path) -> None:
    long_names = plan(3, name=LONG, stages=(LONG, f"{LONG}_two"))
    whole, broken = done(tmp_path / "0"), failed(tmp_path / LONG, plan=long_names)
    for at in (1.0, 3.0):
        value = {"resident": 10**9, "peak": 10**9, "device": 5 * 10**10}
        broken.worker("memory", "train", 0, at, value=value)
    empty, wide = MadeRun(tmp_path / "3"), done(tmp_path / "4", plan=plan(32))
    for made, width, back in (
        ([empty], 390, "rgb(248, 247, 244)"),
        ([broken], 1400, "rgb(248, 247, 244)"),
        ([whole, broken], 390, "rgb(20, 22, 26)"),
        ([wide], 1400, "rgb(20, 22, 26)"),
    ):
        page = opened(report(*made), width=width, color_scheme="dark" if "20, 22" in back else "light")
        fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert page.evaluate(fits) and wrong(page, "overlaps") == [], (made[0].seen.name, width)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == back
        assert page.locator("h1").inner_text().startswith(made[0].seen.name)


def test_the_value_under_the_pointer_and_zoom(opened: Open, tmp_path: Path) -> None:
    page = opened(report(done(tmp_path / "run")))
    plot = page.locator("figure .plot-area").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 50)
    assert page.locator("#tip").inner_text() == "step 1: 2"
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 50)
    page.mouse.up()
    ticks = plot.locator("> text").all_text_contents()
    assert "2" in ticks and "10" not in ticks
    page.keyboard.press("Escape")
    assert "10" in plot.locator("> text").all_text_contents()
    lanes = page.locator(".lanes")
    lanes.scroll_into_view_if_needed()
    box = lanes.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 20)
    text = page.locator("#tip").inner_text()
    assert text.startswith("rollout:0, 0.00") and text.endswith(" s: waits for input")
    page.fill("#filter", "lr")
    assert page.locator("figure:visible").count() == 1
