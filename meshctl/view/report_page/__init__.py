"""`meshctl report`: one run, or two side by side, as one HTML page that loads nothing.

page.py         the frame: policy, style, script          sections.py    head, times, faults, files, recipe
record.py       what is read of a run                     timeline.py    a lane for each rank
markup.py       HTML as text                              plots.py       metrics and memory
page/           style and script
"""
