"""The `octavo` command: what a person types. One module per noun; heavy imports inside commands."""
