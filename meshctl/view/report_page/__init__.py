"""`meshctl report`: one run, or two side by side, as one HTML page that loads nothing.

page.py         the frame: policy, style, script          sections.py    head, times, faults, files, recipe
record.py       what is read of a run                     timeline.py    a lane for each rank
comparison.py   two runs beside each other                plots.py       metrics and memory
markup.py       HTML as text                              page/          style and script
"""
