"""One storage node: journal, write cache, entry logs, index."""
