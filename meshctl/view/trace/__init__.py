"""`trace.json`: what all workers have recorded in the steps of `run.trace`, for https://ui.perfetto.dev.

`writer.py` writes it when the steps are over, `merging.py` reads the files of the workers step by step, and
`events.py` makes the events of the Trace Event Format.
"""
