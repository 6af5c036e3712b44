"""Formats and codecs for the wire and the disk: no I/O, no clock, no asyncio."""
