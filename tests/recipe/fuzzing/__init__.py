"""Fuzzes the commands that read recipes. For any files, file names, overrides and environment, they must end
with a report and do nothing else.

    python -m tests.recipe.fuzzing --inputs 100000            mutates golden, correct and shipped recipes
    python -m tests.recipe.fuzzing --engine atheris           guided by coverage, if atheris is installed

A third of the inputs are recipes with random bytes, which few YAML readers accept; in a third, a few words are
others; and in a third, only numbers are changed, so that many are correct and are drawn. The results of a run are
counted. Each input is validated and printed in every format, as by `validate`, `config` and, for a correct recipe,
`show-topology`, whole and in parts; and completions are requested. For every input, these conditions are checked: no exception is
raised; each command takes at most 2 seconds of CPU time, also for 1 MiB; no process is started, no socket
opened, no module imported and no file written; the spans of the report are in the text; and the output
contains no control characters and no values of environment variables. The first input that violates a
condition is written to `fuzz-found.yaml`, with its other parts in the first line.

    inputs.py      the inputs: recipes with random mistakes, overrides, files, names and environments
    checks.py      reads an input, and checks the conditions
    __main__.py    many inputs
"""
