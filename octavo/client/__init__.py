"""The typed client: `AsyncClient`, and `Client` for programs without an event loop."""
