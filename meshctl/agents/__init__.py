"""Agents: programs that speak the OpenAI protocol to a model that is trained, on exactly the tokens that were
sampled.

    components:
      agent: {_target_: meshctl.agents.Agent, group: rollout,
              args: {sampler: sampler, function: calculator.solve, group_size: 8}}
    pipeline:
      done: {call: agent.run, in: task}

    agent (a function or a command)
      --POST /v1/chat/completions--> gateway.Gateway       the server, in the process of the sampler
                                     chat.Chat             messages to tokens, and tokens to a reply
                                     trajectories.Forest   the calls of the episode, and the rows of a batch
      <--a reply--                   the sampler's engine

Names are imported on use: the processes of functions import this package, and do not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshctl.on_use import on_use

if TYPE_CHECKING:
    from meshctl.agents.agent import Agent as Agent
    from meshctl.agents.agent import AgentError as AgentError

__all__ = ["Agent", "AgentError"]
__getattr__ = on_use(__name__, {"Agent": "agent", "AgentError": "agent"})
