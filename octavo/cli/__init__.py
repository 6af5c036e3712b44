"""The `octavo` command, one module per noun."""
