"""The tests of `meshctl.hf` need the extra `hf`, which `make test` installs."""

from importlib.util import find_spec

import pytest

from tests.runtime import worlds

collect_ignore_glob = [] if find_spec("transformers") and find_spec("peft") else ["test_*.py"]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The results of the `CHECKS` of a module, which run in the same two processes. `SHARED` of the module
    becomes a folder that both can read."""
    request.module.SHARED = tmp_path_factory.mktemp("shared")
    return worlds.run(2, request.module.CHECKS, tmp_path_factory.mktemp("world"))
