"""The page in a real browser: it computes the same as Python, works by mouse and keyboard, and requests
nothing from a network.

One browser serves all tests: Debian's chromium, driven by playwright. If one of them is missing, the tests
are skipped. No page may write to the console or send a request.
"""

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
from meshctl.topology.cluster import Cluster
from meshctl.topology.mesh import DeviceMesh
from meshctl.view.formatting import size
from meshctl.view.pictures import html, svg
from tests.plan.jobs import DeviceType, of_types
from tests.plan.links import links, partners
from tests.view.pictures import plans
from tests.view.pictures.plans import (
    ODD,
    PLANS,
    everything,
    hundred_thousand,
    many,
    odd,
    one,
    program,
    sixteen,
    small,
    twice,
    two_sources,
)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "no-sandbox",
    "disable-gpu",
    "disable-dev-shm-usage",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
]
if CHROMIUM is None:
    pytest.skip("no chromium is installed: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{flag}" for flag in (*FLAGS, "no-first-run")]
        )
        yield browser
        browser.close()


Open = Callable[..., Any]
SIZE = {"width": 1280, "height": 900}


class Pages:
    """Opens topologies as pages, and records their console output and requests. Pages without special
    settings share one tab."""

    def __init__(self, browser: Any) -> None:
        self.noted: list[str] = []
        self._browser = browser
        self._special: list[Any] = []
        self._tab = self._context().new_page()

    def open(
        self, file: Path, hash: str = "", width: int = SIZE["width"], look: dict[str, Any] | None = None
    ) -> Any:
        page = self._tab
        if look or width != SIZE["width"]:
            self._special.append(self._context(viewport={**SIZE, "width": width}, **(look or {})))
            page = self._special[-1].new_page()
        page.goto(file.as_uri() + hash)
        return page

    def close(self) -> None:
        """Closes special pages, and empties the shared tab."""
        while self._special:
            self._special.pop().close()
        self._tab.goto("about:blank")

    def _context(self, **look: Any) -> Any:
        context = self._browser.new_context(**{"viewport": SIZE, **look})
        context.set_default_timeout(10_000)
        context.on("console", lambda message: self.noted.append(f"console: {message.text}"))
        context.on("weberror", lambda error: self.noted.append(f"error: {error.error}"))
        context.on(
            "dialog", lambda dialog: (self.noted.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        context.on("request", self._asked)
        return context

    def _asked(self, request: Any) -> None:
        if not (request.is_navigation_request() or request.url.startswith("data:")):
            self.noted.append(f"request: {request.url}")


@pytest.fixture(scope="module")
def pages(browser: Any) -> Pages:
    return Pages(browser)


@pytest.fixture
def opened(pages: Pages, tmp_path: Path) -> Iterator[Open]:
    """Opens a topology as a page with the URL fragment `hash`. At the end, the page must not have written to
    the console or sent a request."""
    numbers = count()

    def open(
        drawn: Topology | str,
        hash: str = "",
        *,
        width: int = SIZE["width"],
        look: dict[str, Any] | None = None,
        first: Selection = Selection(),
    ) -> Any:
        file = tmp_path / f"page{next(numbers)}.{'svg' if isinstance(drawn, str) else 'html'}"
        file.write_text(drawn if isinstance(drawn, str) else html.draw(drawn, first), encoding="utf-8")
        return pages.open(file, hash, width, look)

    yield open
    pages.close()
    assert pages.noted == []


def workers(plan: Plan, most: int = 10_000) -> list[str]:
    """Returns all workers of a group; for a large group, the first, the last and some between."""
    found = []
    for group in plan.groups:
        step = max(1, group.workers // most)
        found += [
            f"{group.name}:{rank}" for rank in sorted({*range(0, group.workers, step), group.workers - 1})
        ]
    return found


def described(page: Any, names: list[str], samples: int, most: int = 10_000) -> list[dict[str, Any]]:
    ask = "([names, samples, most]) => names.map((name) => describe(topology, name, samples, most))"
    return list(page.evaluate(ask, [names, samples, most]))


# Its answers are Python's


@pytest.mark.parametrize("name", PLANS)
def test_process_placement(opened: Open, name: str) -> None:
    plan = PLANS[name]()
    names = workers(plan, 50)
    for found in described(opened(topology(plan)), names, 1, 1):
        worker = plan.worker(found["group"], found["rank"])
        seen = tuple(found[key] for key in ("jobRank", "node", "localRank", "devices"))
        assert seen == (worker.job_rank, worker.node, worker.local_rank, list(worker.devices))


def test_meshes(opened: Open) -> None:
    plan = everything()
    page = opened(topology(plan))
    for total in (97, 3):
        for found in described(page, workers(plan), total):
            for mesh in found["meshes"]:
                check_mesh(plan.component(mesh["component"]).mesh, mesh, found["rank"], total)


def test_meshes_of_a_hundred_thousand(opened: Open) -> None:
    plan = hundred_thousand()
    for found in described(opened(topology(plan)), workers(plan, 20), 1_000_003, 64):
        for mesh in found["meshes"]:
            check_mesh(plan.component(mesh["component"]).mesh, mesh, found["rank"], 1_000_003, 64)


def check_mesh(mesh: DeviceMesh, found: dict[str, Any], rank: int, total: int, most: int = 10_000) -> None:
    mine = mesh.sample_range(total, rank)
    views = {dim: mesh.dim_rank(rank, dim) for dim in ("data", "ulysses", "ep_fsdp", "ep", "etp")}
    assert found["coordinate"] == {**mesh.coordinate(rank), **views}
    assert (found["dataRank"], found["slice"]) == (mesh.data_rank(rank), [mine.start, mine.stop])
    assert tuple(found["stages"]) == mesh.pp_stages_of(rank)
    for dim, peers in found["peers"].items():
        along = mesh.ranks_along(dim, rank)
        assert peers["ranks"] == sorted(along[:most]), dim
        if mesh.world_size < 100:
            assert list(mesh.process_groups(dim))[peers["group"]] == along, dim


def test_routes(opened: Open) -> None:
    plan = everything()
    drawn = topology(plan)
    page = opened(drawn)
    for samples in (1, 5, 16, 97):
        seen = {
            (each["group"], each["rank"], route["route"], route["role"]): route
            for each in described(page, workers(plan), samples)
            for route in each["routes"]
        }
        for route, flow in zip(plan.routes, drawn.routes, strict=True):
            sent, received = partners(links(plan, route, flow.samples or samples))
            for component, role, expected in (
                (flow.producer, "sends", sent),
                (flow.consumer, "receives", received),
            ):
                for rank in range(plan.component(component).mesh.world_size):
                    found = seen[plan.component(component).group, rank, route.name, role]
                    assert found["agrees"] and found["count"] == len(found["ranks"])
                    assert found["ranks"] == sorted(expected.get(rank, ())), (route.name, role, rank, samples)


def test_routes_of_a_hundred_thousand_are_not_listed(opened: Open) -> None:
    plan = hundred_thousand()
    found = described(opened(topology(plan)), ["train:65535", "rollout:16", "judge:6999"], 1000, 8)
    counts = {
        (each["group"], route["route"], route["role"]): route["count"]
        for each in found
        for route in each["routes"]
    }
    sampler, actor = plan.component("sampler").mesh, plan.component("actor").mesh
    assert counts["train", "publish", "sends"] == sampler.world_size
    assert counts["rollout", "publish", "receives"] == actor.world_size
    assert counts["rollout", "rollouts -> all", "sends"] == actor.world_size // sampler.data_size + 1
    assert all(len(route["ranks"]) <= 8 for each in found for route in each["routes"])


# Choosing


def address(page: Any) -> str:
    return str(page.evaluate("location.href"))


def roles(page: Any, role: str) -> set[str]:
    return set(
        page.eval_on_selector_all(
            f"#kinds .tile[data-role={role}]", "all => all.map((one) => one.dataset.worker)"
        )
    )


def test_a_click_chooses_and_escape_clears(opened: Open) -> None:
    plan = everything()
    page = opened(topology(plan))
    assert page.locator("#worker").inner_text().startswith("Worker")
    page.click('#kinds [data-worker="train:3"]')
    assert address(page).endswith("#train:3")
    assert page.locator("#worker h2").inner_text().split()[-1] == "train:3"
    assert "train 3 selected, node 0" in page.locator("#status").inner_text()
    assert roles(page, "self") == {"train:3"}
    panel = page.locator("#worker").inner_text()
    worker = plan.worker("train", 3)
    assert re.search(rf"job rank\s+{worker.job_rank}\s+node\s+{worker.node}", panel)
    for word in (
        "actor",
        "other",
        "pipeline stages 0 and 2 of 4",
        "receives scored -> metrics.scored",
        "sends publish: actor to sampler",
    ):
        assert word in panel, word
    page.keyboard.press("Escape")
    assert (
        "#" not in address(page)
        and page.locator("#status").inner_text() == "Nothing selected"
        and not roles(page, "self")
    )


def test_what_the_hardware_calls_the_devices_of_a_worker(opened: Open) -> None:
    page = opened(topology(everything()), "#digits:1")
    assert re.search(r"hardware\s+7\s", page.locator("#worker").inner_text())


def test_a_dim_marks_its_peers(opened: Open) -> None:
    plan = everything()
    page = opened(topology(plan), "#train:5")
    mesh = plan.component("actor").mesh
    for dim in ("tp", "ulysses", "ep", "pp", "fsdp"):
        page.check(f'#worker input[value="dim actor {dim}"]')
        assert roles(page, "peer") == {f"train:{rank}" for rank in mesh.ranks_along(dim, 5) if rank != 5}, dim
    tags = page.eval_on_selector_all(
        "#kinds .tile[data-role=peer] .tag", "all => all.map((one) => one.textContent)"
    )
    assert set(tags) == {"fsdp"}, "never color alone"
    page.check('#worker input[value="all actor"]')
    assert roles(page, "peer") == {
        f"train:{rank}" for dim in mesh.mesh_dim_names for rank in mesh.ranks_along(dim, 5) if rank != 5
    }


def test_a_route_marks_its_partners(opened: Open) -> None:
    plan = everything()
    drawn = topology(plan)
    number = next(number for number, flow in enumerate(drawn.routes) if flow.name == "batch -> rollouts")
    page = opened(drawn, "#rollout:2")
    page.check(f'#worker input[value="route {number} receives"]')
    _, received = partners(links(plan, plan.routes[number], drawn.routes[number].samples))
    assert roles(page, "peer") == {f"rollout:{rank}" for rank in received[2]} - {"rollout:2"}
    assert page.locator(f'.picture [data-route="{number}"].on').count() == 2


def test_the_counts_of_a_mode_of_the_user_are_left_to_the_run(opened: Open) -> None:
    drawn = topology(small())
    flow = drawn.routes[0]
    mode = replace(flow.dispatch, mode="team.modes:BY_LENGTH")
    flows = (replace(flow, dispatch=mode, producers=0, consumers=0), *drawn.routes[1:])
    page = opened(replace(drawn, routes=flows), f"#{drawn.groups[0].name}:0")
    assert "samples; by BY_LENGTH decides which" in page.locator("#worker").inner_text()
    assert (
        "by BY_LENGTH" in page.locator("#pipeline").inner_text()
        and "? → ?" in page.locator("#pipeline").inner_text()
    )


def test_the_source_whose_data_end_the_run_is_marked(opened: Open) -> None:
    page = opened(topology(two_sources(every=2)))
    boxes = page.locator("#pipeline .stage").all_inner_texts()
    assert [text.split()[1] for text in boxes if "ends the run" in text] == ["batch"]


def test_a_route_shows_the_transport_to_each_partner(opened: Open) -> None:
    drawn = topology(sixteen())
    ways = {
        "judge:2": {"rollouts -> scored": "tcp", "scored -> compared.scored": "in process"},
        "rollout:1": {"batch -> rollouts": "in process, cuda ipc", "publish: actor to sampler": "nccl"},
        "rollout:0": {"rollouts -> compared.other": "shared memory"},
        "train:6": {"scored -> metrics": "shared memory, tcp"},
        "critic:3": {"rollouts -> baseline": "cuda ipc"},
    }
    for worker, described in ways.items():
        page = opened(drawn, f"#{worker}")
        for name, way in described.items():
            assert way_of(page, name) == way, (worker, name)


@pytest.mark.parametrize(
    ("types", "near", "far"),
    [
        (("cuda", "cuda"), "cuda ipc", "nccl"),
        (("cpu", "cpu"), "shared memory", "tcp"),
        (("cuda", "cpu"), "shared memory", "tcp"),
        (("cpu", "cuda"), "shared memory", "tcp"),
    ],
)
def test_by_which_way_a_route_goes_from_these_devices_to_those(
    types: tuple[DeviceType, DeviceType], near: str, far: str, opened: Open
) -> None:
    for nodes, way in ((1, near), (2, far)):
        page = opened(topology(of_types(replace(small(), cluster=Cluster(nodes)), types)), "#rollout:0")
        assert way_of(page, "publish: actor to sampler") == way
        assert way in page.locator("#routes").text_content()


@pytest.mark.parametrize(("kind", "way"), [("cuda", "cuda ipc"), ("cpu", "shared memory")])
def test_weights_that_stay_in_their_processes_are_shown_with_their_transport(
    kind: DeviceType, way: str, opened: Open
) -> None:
    drawn = topology(of_types(twice(), (kind,)))
    assert [route.over for route in drawn.routes] == ["process"]
    assert way_of(opened(drawn, "#alone:1"), "publish: a to b") == way


def way_of(page: Any, route: str) -> str:
    """Returns the path of the chosen worker's end of a route."""
    return str(page.locator("#worker .route").filter(has_text=route).first.locator(".reach").inner_text())


def test_hovering_previews(opened: Open) -> None:
    page = opened(topology(everything()), "#train:3")
    page.hover('#kinds [data-worker="judge:4"]')
    page.wait_for_function("document.querySelector('#worker h2').textContent.includes('judge:4')")
    assert "preview" in page.locator("#worker .top").inner_text() and address(page).endswith("#train:3")
    page.hover("h1")
    page.wait_for_function("document.querySelector('#worker h2').textContent.includes('train:3')")


def test_the_keyboard_alone(opened: Open) -> None:
    page = opened(topology(everything()))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the workers"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    focused = "document.activeElement.dataset.worker"
    assert page.evaluate(focused) == "rollout:0"
    there = {
        "ArrowRight": "rollout:1",
        "End": "rollout:3",
        "ArrowDown": "critic:3",
        "ArrowUp": "rollout:1",
        "Home": "rollout:0",
    }
    for key, worker in (*there.items(), ("ArrowLeft", "rollout:0")):
        page.keyboard.press(key)
        assert page.evaluate(focused) == worker, key
    assert (
        page.evaluate("document.querySelectorAll('#kinds .kind:first-child .tile[tabindex=\"0\"]').length")
        == 1
    )
    page.keyboard.press("Enter")
    assert address(page).endswith("#rollout:0") and page.evaluate(focused) == "rollout:0"
    page.keyboard.press("PageDown")
    assert page.evaluate("document.activeElement.closest('[data-node]').dataset.node") == "1"
    page.keyboard.press(" ")
    assert address(page).endswith("#" + page.evaluate(focused))


def test_going_to_a_worker_by_name(opened: Open) -> None:
    page = opened(topology(hundred_thousand()))
    page.fill("#where", "train:60000")
    page.keyboard.press("Enter")
    assert address(page).endswith("#train:60000")
    assert page.evaluate("document.activeElement.dataset.worker") == "train:60000"
    page.fill("#where", "train:65536")
    page.keyboard.press("Enter")
    assert page.locator("#refused").inner_text() == "There is no train:65536; train has the ranks 0 to 65535"
    assert page.get_attribute("#where", "aria-invalid") == "true" and address(page).endswith("#train:60000")


def test_the_address_and_the_first_selection(opened: Open) -> None:
    drawn = topology(everything())
    page = opened(drawn, first=Selection(rank=("judge", 2)))
    assert roles(page, "self") == {"judge:2"} and address(page).endswith("#judge:2")
    page.evaluate("location.hash = '#critic:1'")
    page.wait_for_function("document.querySelector('#kinds [data-role=self]').dataset.worker === 'critic:1'")
    assert roles(opened(drawn, "#train:4", first=Selection(rank=("judge", 2))), "self") == {"train:4"}, (
        "the address wins"
    )
    assert not roles(opened(drawn, "#nobody:4"), "self")


def test_a_component_and_a_dim_chosen_first(opened: Open) -> None:
    plan = everything()
    page = opened(topology(plan), first=Selection("actor", "tp"))
    assert page.locator(".component[open]").get_attribute("data-component") == "actor"
    groups = enumerate(plan.component("actor").mesh.process_groups("tp"))
    numbers = "all => all.map((one) => [one.dataset.worker, one.querySelector('.stripes').textContent])"
    shown = page.eval_on_selector_all('#kinds .tile[data-worker^="train:"]', numbers)
    assert dict(shown) == {f"train:{rank}": str(number) for number, ranks in groups for rank in ranks}
    assert (
        opened(topology(hundred_thousand()), first=Selection(node=9000)).locator('[data-node="9000"]').count()
        == 1
    )


def test_a_mesh_is_drawn_when_it_is_opened(opened: Open) -> None:
    plan = everything()
    page = opened(topology(plan), "#train:5")
    page.click(".component[data-component=other] summary")
    cells = page.eval_on_selector_all(
        ".component[data-component=other] .tile", "all => all.map((one) => one.dataset.worker)"
    )
    assert sorted(cells) == sorted(f"train:{rank}" for rank in range(16))
    page.click('.component[data-component=other] [data-worker="train:7"]')
    assert address(page).endswith("#train:7")


# Very much


def test_a_hundred_thousand_devices_are_not_a_hundred_thousand_elements(opened: Open) -> None:
    page = opened(topology(hundred_thousand()))
    elements = "document.querySelectorAll('*').length"
    assert page.evaluate(elements) < 3000
    page.click('#kinds [aria-expanded="false"] >> nth=1')
    assert page.evaluate(elements) < 6000
    assert page.locator(".node").count() > 20
    page.click('#kinds [aria-label^="Next 64 of Nodes 2,500"]')
    assert page.locator('[data-node="2564"]').count() == 1
    page.fill('#kinds [aria-label="Node, of Nodes 0–2,499"]', "1234")
    page.keyboard.press("Tab")
    assert page.locator('[data-node="1234"] [data-worker="rollout:9872"]').count() == 1


def test_peers_on_other_nodes_are_brought_along(opened: Open) -> None:
    plan = hundred_thousand()
    page = opened(topology(plan), "#train:777")
    page.check('#worker input[value="dim actor pp"]')
    nodes = {plan.node_of("train", rank) for rank in plan.component("actor").mesh.ranks_along("pp", 777)}
    shown = {
        int(node)
        for node in page.eval_on_selector_all("[data-node]", "all => all.map((one) => one.dataset.node)")
    }
    assert len(nodes & shown) == 8 and plan.node_of("train", 777) in shown


def test_very_many_of_everything(opened: Open) -> None:
    page = opened(many(500))
    assert page.evaluate("document.querySelectorAll('*').length") < 12_000
    before = page.locator(".component").count()
    page.click("text=/Show .* more components/")
    assert page.locator(".component").count() > before


def test_odd_names_are_text(opened: Open) -> None:
    drawn = odd()
    page = opened(drawn)
    assert page.title() == f"{drawn.name} · meshctl"
    assert page.locator("h1").inner_text() == drawn.name
    assert page.evaluate("document.querySelectorAll('script').length") == 3
    assert (
        page.locator("#warnings li")
        .inner_text()
        .startswith("MC320 <img src=x onerror=alert(1)> code is idle")
    )
    for group in drawn.groups:
        if "\ud800" not in group.name:
            page.evaluate("(name) => choose(topology.worker(name))", f"{group.name}:0")
            assert page.locator("#worker h2 .mono").text_content() == f"{group.name}:0"
    page.evaluate("document.querySelectorAll('.component').forEach((one) => { one.open = true; })")
    shown = page.locator("body").inner_text()
    assert sum(" ".join(name.split()) in " ".join(shown.split()) for name in ODD[2:9]) >= 6


@pytest.mark.parametrize("make", [program, one])
def test_little(opened: Open, make: Callable[[], Plan]) -> None:
    plan = make()
    page = opened(topology(plan))
    page.click("#kinds .tile")
    assert page.locator("#worker h2").inner_text().split()[-1] == f"{plan.groups[0].name}:0"


# For everybody


WIDTHS = "all => all.map((one) => one.getBoundingClientRect().width)"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"color_scheme": "light", "width": 360},
}
CHECKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")


def wrong(page: Any, check: str) -> Any:
    """Returns the result of one of the checks."""
    return page.evaluate(f"(() => {{ {CHECKS}\nreturn {check}(); }})()")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("chosen", ["", "#train:5"])
def test_everybody_can_read_it(opened: Open, look: str, chosen: str) -> None:
    how = dict(LOOKS[look])
    page = opened(
        many(12) if look == "narrow" else topology(everything()),
        chosen,
        width=how.pop("width", 1280),
        look=how,
    )
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_for_function(
        "[...document.querySelectorAll('.component')].every((one) => one.querySelector('.body').children.length)"
    )
    for check in ("contrast", "nameless", "stray"):
        assert wrong(page, check) == [], check
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    ids = page.eval_on_selector_all("[id]", "all => all.map((one) => one.id)")
    assert len(ids) == len(set(ids))
    shown = "all => all.filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))"
    levels = page.eval_on_selector_all("h1, h2, h3", shown)
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))


def test_lanes_are_visible_without_scrolling_and_long_names_fit(opened: Open) -> None:
    drawn = topology(everything())
    page = opened(drawn)
    assert page.evaluate(
        "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)(document.querySelector('#pipeline .scroll'))"
    )
    renamed = replace(drawn.groups[-1], name="a_group_with_a_name_" * 5)
    page = opened(replace(drawn, groups=(*drawn.groups[:-1], renamed)))
    assert page.evaluate(
        "document.querySelector('#groups').scrollWidth <= document.querySelector('#map').clientWidth"
    )
    assert all(
        width >= 80 for width in page.eval_on_selector_all("#groups tbody tr > :not(.workers)", WIDTHS)
    )


def test_assumptions_are_stated(opened: Open) -> None:
    """Numbers in the recipe are used. If there is none, the field has a number to assume."""
    page = opened(topology(everything()), "#rollout:0")
    page.fill("#samples", "40")
    panel = page.locator("#worker").inner_text()
    assert "where the recipe does not give them" in panel and re.search(r"samples \S+ of 64\n", panel)
    assert "of 40 samples 0–9" in panel and re.search(r"of 40, if the batch has them", panel)


def test_what_a_screen_reader_reads(opened: Open) -> None:
    page = opened(topology(everything()), "#train:5")
    output = page.locator("body").aria_snapshot()
    for words in (
        "- banner:", "- main:", 'heading "everything" [level=1]', 'region "Placement":', 'region "Pipeline":', 'region "Components":',
        'region "Worker train:5":', 'grid "Node 0":', 'gridcell "train:5, node 1, cuda 1, actor and other" [selected]',
        'gridcell "train:4, node 1, cuda 0, actor and other, tp of train:5"', 'radio "all dims" [checked]', "- status:",
        'spinbutton "Samples of a batch"', 'textbox "Go to worker"', 'combobox "Color by"', 'button "Go to train:1"',
    ):  # fmt: skip
        assert words in output, words
    assert re.search(r'gridcell "cuda 6–11, idle"|gridcell "cuda \S+, idle"', output)
    assert re.search(r'img "Pipeline of everything: 15 stages', output)


def test_focus_is_seen(opened: Open) -> None:
    page = opened(topology(everything()))
    for _ in range(12):
        page.keyboard.press("Tab")
        assert wrong(page, "outline").startswith("solid 3px on ")


def test_the_theme_can_be_chosen(opened: Open) -> None:
    page = opened(topology(everything()), look={"color_scheme": "dark"})
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme light" and page.evaluate(color) != dark
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme dark" and page.evaluate(color) == dark
    page.reload()
    assert page.inner_text("#theme") == "Theme dark"


def test_forced_colors_print_and_still_pictures(opened: Open) -> None:
    page = opened(
        topology(everything()), "#train:5", look={"forced_colors": "active", "reduced_motion": "reduce"}
    )
    outline = "getComputedStyle(document.querySelector('#kinds [data-role=%s]')).outlineStyle"
    assert page.evaluate(outline % "self") == "solid" and page.evaluate(outline % "peer") == "dashed"
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.picture .edge')).transitionDuration") == "0s"
    )
    page.emulate_media(media="print", forced_colors="none")
    assert (
        not page.is_visible("#jump")
        and not page.is_visible("#theme")
        and page.is_visible("#worker")
        and page.is_visible("#kinds")
    )


def test_without_a_script_it_is_reported(opened: Open) -> None:
    page = opened(topology(everything()), look={"java_script_enabled": False})
    assert "needs JavaScript" in page.inner_text("body") and page.is_visible(".picture") is False


# The pipeline

BOXES = """() => {
  const edge = document.querySelector('.picture').getBoundingClientRect();
  return [...document.querySelectorAll('.picture .stage')].map((one) => one.getBoundingClientRect())
    .map(({left, right, top, bottom}) => [left - edge.left, right - edge.left, top - edge.top, bottom - edge.top]);
}"""
WIRES = "[...document.querySelectorAll('.picture .edge')].map((one) => one.getAttribute('d'))"
Box = tuple[float, float, float, float]


def corners(drawn: str) -> list[tuple[float, float]]:
    """Returns the points at which a route turns, from its producer to its consumer."""
    points = [float(each) for each in re.findall(r"-?[\d.]+(?:e-?\d+)?", drawn)]
    x, start, across, stop, end = points[0], points[1], points[3], points[9], points[12]
    return [(x, start), (across, start), (across, stop), (end, stop)]


@pytest.mark.parametrize("width", [1280, 2000, 360])
def test_no_route_crosses_a_box_and_no_box_another(opened: Open, width: int) -> None:
    drawn = topology(everything())
    page = opened(drawn, width=width)
    boxes: list[Box] = page.evaluate(BOXES)
    wires = [corners(each) for each in page.evaluate(WIRES)]
    assert len(boxes) == len(drawn.stages) + 1 and len(wires) == len(drawn.routes)
    for wire in wires:
        for (x0, y0), (x1, y1) in pairwise(wire):
            x, y = (x0 + x1) / 2, (y0 + y1) / 2
            assert not any(left < x < right and top < y < bottom for left, right, top, bottom in boxes)
    for box, other in combinations(boxes, 2):
        assert box[1] <= other[0] or other[1] <= box[0] or box[3] <= other[2] or other[3] <= box[2]


def test_the_number_of_further_components_is_inside_of_its_tile(opened: Open) -> None:
    alone = plans.group("alone", "cuda", 8, (0, 8))
    components = [plans.component(f"c{number}", alone) for number in range(31)]
    made = plans.plan("many", Cluster.of(1, cuda=8), [alone], components, [])
    page = opened(topology(made), width=760)
    outside = """[...document.querySelectorAll('.tile .rest')].filter((one) => {
      const text = one.getBoundingClientRect(), tile = one.closest('.tile').getBoundingClientRect();
      return one.scrollWidth > one.clientWidth + 1 || text.left < tile.left || text.right > tile.right;
    }).length"""
    assert page.locator(".tile .rest").count() == 8 and page.evaluate(outside) == 0


def test_all_transports_of_a_route_are_shown_whole(opened: Open) -> None:
    page = opened(topology(everything()))
    assert "in process, cuda ipc, nccl" in page.inner_text("#pipeline .picture")
    cut = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert page.eval_on_selector_all(".picture .wraps .aside", cut) == []


def test_inputs_are_inside_of_their_boxes(opened: Open) -> None:
    page = opened(many(60))
    outside = """[...document.querySelectorAll('.picture .input')].filter((one) => {
      const input = one.getBoundingClientRect(), box = one.closest('.stage').getBoundingClientRect();
      return input.left < box.left || input.right > box.right || input.bottom > box.bottom;
    }).length"""
    assert page.evaluate(outside) == 0 and "more stage" in page.inner_text("#pipeline .left")


def test_bytes_are_written_as_the_text_picture_writes_them(opened: Open) -> None:
    page = opened(topology(one()))
    for amount in (0, 1, 999, 1000, 999_499, 999_500, 8_192_000, 12_345_678_901, 10**14):
        assert page.evaluate("(amount) => bytesOf(amount)", amount) == size(amount)


# The SVG


def test_the_picture_opens_and_is_all_there(opened: Open) -> None:
    for drawn in (topology(everything()), odd(), many(100)):
        page = opened(svg.draw(drawn))
        assert wrong(page, "outside") == []
