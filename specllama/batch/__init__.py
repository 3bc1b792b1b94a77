"""Many texts from a file into a file: a run that was ended goes on where it stopped."""
