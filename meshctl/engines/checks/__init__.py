"""What `meshctl doctor` looks at: whether this machine can do what the local engine and its workers need.

    examine.py    all topics in one pass
    asked.py      what a recipe wants of the machine
    probe.py      a child that measures what may hang or crash, with a time limit

A topic is a file with three things: `Facts` that were measured, `measure`, and `judge`, which makes checks of
facts and does nothing else; so every finding can be seen without a machine that has it.
"""
