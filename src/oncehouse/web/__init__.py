"""The dashboard: pages rendered on the server over the read model, kept live by server-sent events.

It reads `insights*.py` and nothing else; what a person does by hand goes through `actions.py`, as at the command line.
"""
