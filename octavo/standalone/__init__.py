"""Standalone: a whole cluster as child processes of one supervisor, in one folder."""
