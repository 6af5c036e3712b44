"""The typed client: `AsyncClient`, and `Client`, its synchronous face."""
