"""Topics over ledgers: ownership, publishing, subscriptions, the HTTP API. Keeps nothing."""
