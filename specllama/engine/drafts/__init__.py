"""What drafts for a target: a model, a head, the text itself, a function, or several of these.

A kind of draft is a file here, and a line in the table of `opening`.
"""
