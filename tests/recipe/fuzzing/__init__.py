"""Fuzzes the commands that read recipes. For any files, file names, overrides and environment, they must end
with a report and do nothing else.

    python -m tests.recipe.fuzzing --inputs 100000            mutates golden, correct and shipped recipes

A third of the inputs are recipes with random bytes, which few YAML readers accept; in a third, a few words are
others; and in a third, only numbers are changed, so that many are correct and are drawn. Each input is
validated and printed in every format, as by `validate`, `config` and, for a correct recipe, `show-topology`,
whole and in parts; and completions are requested. No input may raise an exception, take more than 2 seconds of
CPU time, start a process, open a socket, import a module or write a file; the spans of the report are in the
text, and the output contains no control characters and no values of environment variables. The first input that
violates a condition is written to `fuzz-found.yaml`, with its other parts in the first line.
"""
