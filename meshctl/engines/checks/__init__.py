"""The checks of a machine: whether it has what a launch and its workers need.

machine.py         examines this machine for the needs of a recipe (`requirements.py`)
on_node.py         the report of a node of a plan, and the verdict about those of all nodes
interpreters.py, models.py, device_files.py     what the groups of a plan need
resume.py          the checkpoint from which a run continues
"""
