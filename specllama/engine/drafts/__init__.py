"""All that can draft for a target: a model, a head, the text itself, a function, or several of these.

Each kind of draft has a file in this folder and a line in the table of `kinds`.
"""
