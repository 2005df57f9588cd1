"""A proxy in front of ClickHouse that lets INSERTs fail as networks and servers do.

Imports `devstack.server_base` alone. Start with `faults.py` (what can fail), then `fault_proxy.py`.
"""
