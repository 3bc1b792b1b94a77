"""Drafts for models that have none, trained on the user's own machine. PyTorch is imported here alone, when needed."""
