"""The page in a browser: what is chosen by mouse, keyboard and address."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from meshctl.plan.views.selection import Selection
from meshctl.plan.views.topology import topology
from tests.plan.links import links, partners
from tests.view.pictures.browser.page import Open
from tests.view.pictures.plans import (
    everything,
    hundred_thousand,
    sixteen,
    small,
    two_sources,
)

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
    page.wait_for_selector(".component[data-component=other] .tile")  # it is drawn after the click
    cells = page.eval_on_selector_all(
        ".component[data-component=other] .tile", "all => all.map((one) => one.dataset.worker)"
    )
    assert sorted(cells) == sorted(f"train:{rank}" for rank in range(16))
    page.click('.component[data-component=other] [data-worker="train:7"]')
    assert address(page).endswith("#train:7")
