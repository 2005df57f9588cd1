"""Names that somebody could try: what breaks out of quotes, ends lines, turns text around or fills a disk."""

from __future__ import annotations

QUOTABLE = {
    "backtick": "a`b",
    "backticks that close and open": "x`; DROP TABLE y; --`",
    "single quote": "it's",
    "double quote": 'a"b',
    "semicolon": "a; DROP TABLE y; --",
    "backslash": "a\\",
    "backslash and backtick": "a\\`b",
    "comment": "a /* b -- c",
    "braces of a parameter": "{a:String}",
    "percent": "100%s %(x)s",
    "slashes": "../../etc/passwd",
    "dollar": "$(id) ${x}",
    "markup": "<b>[red]x[/red]</b>",
    "other scripts": "цена 値段",
    "keyword": "SELECT",
}
"""Strange, but a name: quoted it means itself and nothing else."""

REFUSED = {
    "empty": "",
    "newline": "a\nb",
    "carriage return": "a\rb",
    "nul": "a\0b",
    "tab": "a\tb",
    "escape sequence": "\x1b[2Ja",
    "10,000 characters": "x" * 10_000,
    "10,000 dots": "x." * 5_000,
    "right-to-left override": "a\u202eb",
    "right-to-left mark": "a\u200fb",
    "isolate": "a\u2066b",
    "line separator": "a\u2028b",
    "lone surrogate": "a\ud800b",
    "byte order mark": "\ufeffa",
    "space around": " a ",
}
"""No place of ours takes these."""

ALL = QUOTABLE | REFUSED
