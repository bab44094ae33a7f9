#!/usr/bin/env python3
"""Writes code_points.json: what jinja2 in transformers' environment prints for the str methods of every code point.

Usage: make_code_points.py > code_points.json    (CPython 3.11, jinja2 3.1.6, transformers 4.57.3)

The file: {"runs": [[first, last], ...], "cases": [{"expression": ..., "crc": [...]}, ...]}. The runs are the assigned code points of
Unicode 14. An expression stands for the template {% for i in x %}{{ expression }};{% endfor %}, rendered for 4096 code points after
the other; of each text the file has the CRC-32.
"""
import json
import unicodedata
import zlib

from transformers.utils.chat_template_utils import _compile_jinja_template

EXPRESSIONS = ["i.upper()", "i.lower()", "i.title()", "i.swapcase()", "i.capitalize()", "i.casefold()", "(i ~ 'A').title()",
               "('A' ~ i ~ '\u03a3').lower()", "('A\u03a3' ~ i).lower()", "i.isupper()", "i.islower()", "i.istitle()", "i.isalpha()",
               "i.isalnum()", "i.isdigit()", "i.isdecimal()", "i.isnumeric()", "i.isspace()", "i.isidentifier()", "('a' ~ i).isidentifier()",
               "i.isprintable()"]
points = [c for c in range(0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
runs = []
for c in points:
    if runs and runs[-1][1] == c - 1:
        runs[-1][1] = c
    else:
        runs.append([c, c])
cases = []
for expression in EXPRESSIONS:
    template = _compile_jinja_template("{% for i in x %}{{ " + expression + " }};{% endfor %}")
    cases.append({"expression": expression, "crc": [
        zlib.crc32(template.render(x=[chr(c) for c in points[at:at + 4096]]).encode()) for at in range(0, len(points), 4096)]})
print('{"runs": ' + json.dumps(runs, separators=(",", ":")) + ', "cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}")
