"""Recipe -> Plan: everything placed, standard library only."""

from meshctl.plan.model import Plan

__all__ = ["Plan"]
