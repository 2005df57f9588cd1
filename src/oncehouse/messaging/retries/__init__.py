"""Retry topics and dead letters: messages that failed wait elsewhere, and the others go on."""
