"""Messages handled once: remembered in the handler's own transaction, stored and worked off, or noted in Redis."""
