"""One script per data set: from the published files to one prepared file (see fedlib.prepare)."""
