"""The plan of a run: the recipe with ranks, nodes and devices for all workers. Standard library only."""

from meshctl.plan.model import Plan

__all__ = ["Plan"]
