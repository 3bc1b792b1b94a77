"""Trains drafts on the user's own machine, for models that have none. Nothing else in specllama imports PyTorch."""
