"""The checks of a machine: whether it has what the local engine and its workers need.

    runner.py          the table of topics; examines all of them, each measured in a child with a time limit
    requirements.py    what a recipe requires of the machine
    probe.py           the child

A topic is a module with a frozen dataclass `Facts`, a function `measure` that returns the facts as plain
data, and a pure function `judge` that turns facts into findings. Tests can therefore pass `judge` the facts
of any machine. A new topic is a new module and one line in `runner.TOPICS`.
"""
