"""One large-batch step, then many."""
