"""What drafts for a target: a model, the text itself, a function."""
