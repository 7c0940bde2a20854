"""`meshctl report`: one run, or two side by side, as one HTML page that loads nothing.

page.py         the frame: policy, style, script          sections.py    head, table of times, faults, files
record.py       what is read of a run                     timeline.py    a lane for each rank
step_spans.py   the times of steps, from events           plots.py       metrics and memory
series.py       values of a metric, thinned               page/          style and script
"""
