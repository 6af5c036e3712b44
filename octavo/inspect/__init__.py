"""Read a bookie's files for people (`octavo inspect`). Never writes, and trusts no byte."""
