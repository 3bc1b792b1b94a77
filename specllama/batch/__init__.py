"""Answers the lines of a file in another file. An interrupted run continues where it stopped."""
