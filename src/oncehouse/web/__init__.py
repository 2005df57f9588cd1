"""The dashboard: pages rendered on the server over the read model, kept live by server-sent events.

It reads the monitor (`oncehouse.monitoring`) only; its actions call `monitoring/actions.py`, as the CLI does.
Start at `views.py`: a page is a method there and a template of the same name.
"""
