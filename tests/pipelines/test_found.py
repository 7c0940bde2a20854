"""Recipes in which random pipelines found a difference between a run and the model, in their smallest form."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.check import check_in_threads
from tests.pipelines.generate import Scenario

PARTS = """
  endless: {_target_: tests.pipelines.parts.Endless, group: a, args: {column: endless}}
  sized: {_target_: tests.pipelines.parts.Sized, group: a, args: {column: sized, length: 28}}
  stream: {_target_: tests.pipelines.parts.Stream, group: b, args: {column: stream, length: 2}, parallel: {tp_size: 3}}
  empty: {_target_: tests.pipelines.parts.Stream, group: b, args: {column: empty, length: 0}}
  every: {_target_: tests.pipelines.parts.Endless, group: b, args: {column: every}}
  one: {_target_: tests.pipelines.parts.Worker, group: a, args: {column: one}}
  peers: {_target_: tests.pipelines.parts.Worker, group: c, args: {column: peers}, parallel: {tp_size: 3}}
  three: {_target_: tests.pipelines.parts.Worker, group: b, args: {column: three}}
"""
FOUND = {
    "a second batch in minibatches on the first rank alone": """
  s0: {call: endless.next, samples: 6}
  s1: {call: one.take, in: s0}
  s2:
    repeat: {over: s0, size: 1}
    stages:
      p0: {call: three.take, in: [s0, s1], execute: first}
""",
    "all of a minibatch in a second batch": """
  s0: {call: endless.next, samples: 6}
  s1: {call: one.take, in: s0}
  s2:
    repeat: {over: s0, size: 4}
    stages:
      p0: {call: three.pair, in: {one: s0, other: {from: s1, dispatch: all}}}
      p1: {call: three.pair, in: {one: s0, other: {from: s1, dispatch: all}}, execute: first, dispatch: slice}
""",
    "minibatches over the value of the first data rank": """
  s0: {call: endless.next, samples: 6, collect: first}
  s1:
    repeat: {over: s0, size: 4}
    stages:
      p0: {call: three.take, in: s0}
""",
    "peers that receive different samples, and a collect mode of the user": """
  s0: {call: three.take, in: s1}
  s1: {call: endless.next, samples: 6}
  s2: {call: peers.peak, in: s0, execute: peer}
""",
    "stages at an unannounced end, one of which uses the component of the stream": """
  s0: {call: sized.next, samples: 4, when: end}
  s1: {call: endless.next, samples: 4, when: end}
  s2: {call: endless.next, samples: 4}
""",
    "a balanced share that is too small for the next stage": """
  s0: {call: endless.next, samples: 7}
  s1: {call: three.take, in: s0, dispatch: {balance: tokens}, collect: first}
  s2: {call: three.take, in: s1}
""",
    "a stream with too few samples for two ranks, in the step in which another one ends": """
  s0: {call: stream.next, samples: 4, ends_run: true, every: 2}
  s1: {call: three.take, in: s0}
  s2: {call: stream.next, samples: 4}
""",
    "a stream that no stage takes and that has no data from the first step on, before another one": """
  s0: {call: empty.next, samples: 4}
  s1: {call: every.next, samples: 4}
  s2: {call: three.take, in: s1}
""",
    "a group that runs ahead of the end of a stream into its own last step": """
  s0: {call: sized.next, samples: 9}
  s1: {call: three.thrice, in: s0, when: checkpoint}
  s2: {call: three.take, in: s0, dispatch: {allow_empty: true}}
  s3: {call: stream.next, samples: 4}
""",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes") / "recipe.yaml"


@pytest.mark.parametrize("name", FOUND)
@settings(max_examples=1)
@given(st.just(FOUND))  # the check notes what happens in the example of a generated test
def test_what_random_pipelines_found_does_what_the_model_does(
    name: str, file: Path, found: dict[str, str]
) -> None:
    text = f"""
groups: {{a: {{ranks: 1, device_type: cpu}}, b: {{ranks: 3, device_type: cpu}},
          c: {{ranks: 3, device_type: cpu}}}}
components:{PARTS}
pipeline:{found[name]}
run: {{steps: 6, checkpoint: {{every: 0}}}}
"""
    check_in_threads(Scenario(yaml.safe_load(text)), file)
