"""What MC410 proposes really fits, and changes as little as it can."""

from hypothesis import assume, given
from hypothesis import strategies as st

from meshctl.mesh import DeviceMesh
from meshctl.recipe.rules.meshes import nearest_fits

SIZES = st.dictionaries(st.sampled_from(["dp", "fsdp", "tp", "pp", "cp"]), st.integers(1, 12), min_size=1, max_size=4)


def test_the_picture_of_the_design() -> None:
    assert list(nearest_fits({"tp": 3}, "dp", 1, 8))[:2] == [{"dp": 4, "tp": 2}, {"dp": 2, "tp": 4}]


@given(SIZES, st.integers(1, 48), st.sampled_from([1, 2, 3]), st.booleans())
def test_every_proposal_fits(said: dict[str, int], workers: int, ulysses: int, infer: bool) -> None:
    inferred = next((dim for dim in ("dp", "fsdp") if dim not in said), None) if infer else None
    proposals = list(nearest_fits(said, inferred, ulysses, workers))
    for layout in proposals:
        mesh = DeviceMesh.from_sizes(world_size=workers, ulysses_size=ulysses, **{f"{dim}_size": size for dim, size in layout.items()})
        assert mesh.world_size == workers
    assume(proposals)
    changes = [sum(abs(layout[dim] - size) for dim, size in said.items()) for layout in proposals]
    assert changes == sorted(changes)


@given(SIZES, st.integers(1, 48))
def test_there_is_always_a_proposal(said: dict[str, int], workers: int) -> None:
    if len(said) > 1 or "dp" not in said:
        assert next(iter(nearest_fits(said, None if "dp" in said else "dp", 1, workers)), None)
