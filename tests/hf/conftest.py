"""The tests of `meshctl.hf` need the extra `hf`, which `make test` installs."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("transformers") and find_spec("peft") else ["test_*.py"]
