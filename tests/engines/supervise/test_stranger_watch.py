"""Reports of connections without the token of the run."""

from __future__ import annotations

from meshctl.engines.supervise.watches import StrangerWatch
from meshctl.network.strangers import HOSTS_MAX, OTHERS, RejectedPeers
from meshctl.run.events import Event


def test_the_first_are_reported_at_once_and_all_at_the_end() -> None:
    head, node = RejectedPeers(), RejectedPeers()
    watch = StrangerWatch(lambda: [head, node])
    assert [*watch.poll(), *watch.at_end()] == []
    head.note("10.0.0.7")
    assert [one.value["text"] for one in watch.poll()] == [
        "1 connection without the token of this run was dropped, from 10.0.0.7"
    ]
    node.note("10.0.0.8", 3)
    watch.add(Event("strangers", "train", 0, value={"hosts": {"10.0.0.7": 1}}))
    assert [*watch.poll()] == []
    end = "5 connections without the token of this run were dropped, from 10.0.0.8, 10.0.0.7"
    assert [*watch.at_end()] == [end] and [*watch.at_end()] == []


def test_the_number_of_hosts_is_bounded() -> None:
    found = RejectedPeers()
    for number in range(HOSTS_MAX + 5):
        found.note(f"h{number}")
    assert found[OTHERS] == 5 and len(found) == HOSTS_MAX + 1
    [text] = StrangerWatch(lambda: [found]).at_end()
    assert text.endswith("from other hosts, h0, h1, 62 more")
