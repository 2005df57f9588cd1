"""Commands that serve the read model over HTTP until they are stopped: `oncehouse dashboard` and `oncehouse metrics`.

Their options are in `cli/monitor_options.py`. What they serve comes from `oncehouse.web` and `oncehouse.metrics`.
"""
