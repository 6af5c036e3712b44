"""What goes over the wire and onto the disk: formats and codecs, no I/O, no clock, no asyncio."""
