"""Where the processes of a run go, from the numbers of a cluster alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.config.schema import Config
from sdpo.errors import ClusterError
from sdpo.workers.layout import Layout, Node, Wanted, layout_of
from sdpo.workers.placement import find_places


def cluster(*cpus: float, gpus: float = 0) -> list[Node]:
    """The first is the driver's."""
    room = [{"CPU": count} | ({"GPU": gpus} if gpus else {}) for count in cpus]
    return [Node(f"id{n}", f"10.0.0.{n}", free, free) for n, free in enumerate(room)]


def wanted(nodes=1, ranks=1, teachers=0, engines=1, graders=2, gpu=False) -> Wanted:
    return Wanted(nodes, ranks, teachers, engines, graders, gpu)


def addresses(nodes: list[Node]) -> list[str]:
    return [node.address for node in nodes]


def test_engines_and_their_graders_are_spread_and_the_first_avoids_the_drivers_machine():
    found = layout_of(cluster(8, 8), wanted(nodes=2, engines=3))
    assert addresses(found.actors) == ["10.0.0.0", "10.0.0.1"]
    assert addresses(found.engines) == ["10.0.0.0", "10.0.0.1", "10.0.0.1"]
    assert Counter(addresses(found.graders)) == {"10.0.0.0": 2, "10.0.0.1": 2}
    assert str(found) == (
        "10.0.0.0: actor 0, engine 0, grader 0, grader 1; 10.0.0.1: actor 1, engine 1, engine 2, grader 2, grader 3"
    )


def test_on_gpus_each_actor_rank_shares_its_device_with_an_engine_and_a_teacher_has_devices_of_its_own():
    found = layout_of(cluster(16, 16, gpus=4), wanted(nodes=1, ranks=4, teachers=2, gpu=True))
    assert found.engines == found.actors and len(found.actors) == 4
    assert addresses(found.teachers) == ["10.0.0.1"] * 2
    assert layout_of(cluster(16, gpus=4), wanted(ranks=4, teachers=2, gpu=True)) == "the teacher's 2 ranks on one node"


@pytest.mark.parametrize(
    ("nodes", "asked", "missing"),
    [
        (cluster(8), wanted(nodes=2), "1 actor ranks on each of 2 nodes"),
        (cluster(2, 2), wanted(nodes=2, ranks=3), "3 actor ranks on each of 2 nodes"),
        (cluster(2, 1), wanted(nodes=2, engines=2), "engine 1"),
        (cluster(3), wanted(engines=1), "the graders of 10.0.0.0"),
        (cluster(0, 0), wanted(), "1 actor ranks on each of 1 nodes"),
    ],
)
def test_what_has_no_room_is_named(nodes, asked, missing):
    assert layout_of(nodes, asked) == missing


@given(
    cpus=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    asked=st.builds(
        Wanted, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(1, 3),
        st.just(False),
    ),
)  # fmt: skip
def test_a_layout_has_every_process_once_takes_no_more_than_there_is_and_ranks_of_a_node_are_neighbours(cpus, asked):
    nodes = cluster(*cpus)
    found = layout_of(nodes, asked)
    if isinstance(found, str):
        return
    assert isinstance(found, Layout)
    assert len(found.actors) == asked.nodes * asked.ranks and len(found.teachers) == asked.teachers
    assert len(found.engines) == asked.engines
    assert len(found.graders) == asked.graders * len(set(found.engines))
    assert found.actors == sorted(found.actors, key=lambda node: node.address)
    assert set(Counter(found.actors).values()) == {asked.ranks}
    for node, count in Counter(found.nodes()).items():
        assert count <= node.free["CPU"]


@pytest.fixture
def nodes(monkeypatch):
    """What `find_places` sees of the cluster, each time it looks."""
    from sdpo.workers import placement

    seen: list[list[Node]] = []
    monkeypatch.setattr(placement, "_nodes", lambda: seen.pop(0) if len(seen) > 1 else seen[0])
    monkeypatch.setattr(placement, "ROOM_S", 0.05)
    monkeypatch.setattr(placement.time, "sleep", lambda seconds: None)
    return seen


def asking(nnodes: int, device: str = "cpu") -> Config:
    config = Config()
    config.trainer.nnodes, config.trainer.device = nnodes, device
    return config


def test_what_never_fits_is_refused_at_once_with_what_is_wanted_and_what_is_there(nodes):
    nodes += [cluster(2, 2), []]  # looking twice would fail
    with pytest.raises(ClusterError) as error:
        find_places(asking(2), "cpu")
    assert str(error.value).startswith(
        "no room for the graders of 10.0.0.1: the cluster is too small. Wanted: 1 x actor (1 CPU) on each of 2 nodes; "
        "1 x engine (1 CPU); 2 x grader (1 CPU) on each node with engines. Free: 10.0.0.0: 2 of 2 CPUs; 10.0.0.1: 2 of "
        "2 CPUs. Start Ray with more"
    )


def test_room_that_others_have_and_machines_that_still_join_are_waited_for(nodes):
    (first, second), (_, later) = cluster(8, 8), cluster(8, 8)
    taken = Node(second.id, second.address, second.total, {"CPU": 0})
    nodes += [[first], [first, taken], [first, later]]
    assert addresses(find_places(asking(2), "cpu").actors) == ["10.0.0.0", "10.0.0.1"]
    nodes[:] = [[first, taken]]
    with pytest.raises(ClusterError, match=r"2 nodes: others have kept it for 0.05 s.*10.0.0.1: 0 of 8 CPUs"):
        find_places(asking(2), "cpu")
    nodes[:] = [[first]]
    with pytest.raises(ClusterError, match="2 nodes: the cluster is too small"):
        find_places(asking(2), "cpu")


def test_a_driver_without_gpus_in_a_cluster_that_has_some_asks_which_are_meant(nodes):
    nodes += [cluster(16, 16, gpus=1)]
    with pytest.raises(ClusterError, match="trainer.device: got 'auto'; allowed: cuda or cpu"):
        find_places(asking(1, "auto"), "cpu")
    assert len(find_places(asking(1), "cpu").actors) == len(find_places(asking(2, "cuda"), "cuda").actors) - 1 == 1
