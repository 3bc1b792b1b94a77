"""A store of prefixes: what memories held of earlier texts, so that no prompt is read twice.

A text is cut into blocks of tokens. A block's name is a digest of its tokens and of all that comes before, so that
texts which begin alike share their blocks. Copies are kept in memory (`ram`) and in a folder (`disk`).
"""
