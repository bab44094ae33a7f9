#!/usr/bin/env python3
"""Writes one_liners.json: expressions over Python's str, list, tuple, dict, int and float methods, jinja2's filters and
tests, operators and formats, with what jinja2 in transformers' environment prints for each, or that it fails.

Usage: make_one_liners.py > one_liners.json    (needs jinja2 3.1.6 and transformers 4.57.3)

The file: {"groups": [{"name": ..., "cases": [[expression, text or null], ...]}, ...]}; null: Python raises an error.
An expression e is the template {{ e }}.
"""

import itertools
import json
import signal
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

TEXTS = ["''", "'a'", "'Hello World'", "' 1  2 3 4 5 '", "'aXbXcX'", "'hello-world_foo bar'", "'ÉcoLe straße ΑΣ'",
         "'line1\\nline2\\r\\nline3\\n'", "'12'", "'-4.5'", "'½²٣'", "'\\t a\\tbc\\t'", "'ﬁ ǅ ŉ'", "'<b>x & y</b>'", "'😀é'"]
LISTS = ["[]", "[1, 2, 3]", "['b', 'A', 'a', 'B']", "[3, 1.5, true]", "[[1, 2], [1], []]", "('x', 'y')", "(1,)",
         "range(5)", "[{'k': 2, 'n': {'m': 'b'}}, {'k': 1, 'n': {'m': 'A'}}, {'k': 2}]", "[none, 1]", "['x', 'x', 'X']"]
DICTS = ["{}", "{'a': 1, 'b': 2}", "{'B': 'x', 'a': 'Y', 'C': 'z'}", "{1: 'one', 2.5: [1], none: {}}"]
INTS = ["0", "1", "-7", "255", "2**53 + 1", "-(10**25)", "true"]
FLOATS = ["0.0", "1.5", "-2.675", "1e16", "1e-7", "123456789.125", "1e300", "0.1", "2.5"]
OTHERS = ["none", "missing", "true", "namespace(a=1)"]


def methods():
    groups = {}

    def add(group, selfs, calls):
        groups.setdefault(group, []).extend(f"{s}.{c}" for s in selfs for c in calls)

    bare = ("capitalize casefold isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable "
            "isspace istitle isupper lower swapcase title upper").split()
    for name in bare:
        add("str." + name, TEXTS, [name + "()"])
        add("str." + name, ["'a'"], [name + "(1)", name + "(x=1)"])
    for name in ("strip", "lstrip", "rstrip"):
        add("str." + name, TEXTS, [name + "()", name + "(none)", name + "(' a1H')", name + "('')"])
        add("str." + name, ["'a'"], [name + "(1)", name + "(chars='a')", name + "('a', 'b')"])
    for name in ("split", "rsplit"):
        calls = [f"{name}({a})" for a in ("", "none", "none, 0", "none, 1", "none, 3", "none, -1", "' '", "' ', 2", "'X'",
                                          "'X', 1", "'ll'", "sep='o', maxsplit=1", "maxsplit=1", "sep=none", "'\\n'")]
        add("str." + name, TEXTS, calls)
        add("str." + name, ["'a b'"], [f"{name}({a})" for a in ("''", "1", "' ', none", "' ', 'x'", "' ', 1.0", "' ', true")])
        add("str." + name, ["'aaaa'", "'abababa'", "'  '"], [name + "('aa')", name + "('aba')", name + "('a', 2)", name + "()",
                                                             name + "(none, 0)"])
    add("str.splitlines", TEXTS + ["'a\\n\\nb'", "'\\n'", "'a\\x0bb\\x0cc\\x1cd\\x85e\\u2028f'"],
        ["splitlines()", "splitlines(true)", "splitlines(keepends=true)", "splitlines(0)"])
    add("str.splitlines", ["'a\\nb'"], ["splitlines('x')", "splitlines(1, 2)", "splitlines(none)"])
    for name in ("partition", "rpartition"):
        add("str." + name, TEXTS, [f"{name}({a})" for a in ("' '", "'X'", "'l'", "'zz'")])
        add("str." + name, ["'a'"], [f"{name}({a})" for a in ("''", "1", "", "sep='a'")])
    for name in ("find", "rfind", "index", "rindex", "count"):
        add("str." + name, TEXTS, [f"{name}({a})" for a in ("'l'", "''", "'X'", "'o', 5", "'l', 2, 4", "'l', -3", "'', 3, 1",
                                                            "'', 100", "'a', none, none", "'é'", "'l', -100, 10**30")])
        add("str." + name, ["'aaa'"], [f"{name}({a})" for a in ("1", "", "'a', 'b'", "'aa'", "sub='a'", "'a', 1.5")])
    for name in ("startswith", "endswith"):
        add("str." + name, TEXTS, [f"{name}({a})" for a in ("'H'", "''", "'d'", "('a', 'H', ' ')", "()", "'e', 1", "'l', 1, 3",
                                                            "'', 100", "' '")])
        add("str." + name, ["'abc'"], [f"{name}({a})" for a in ("1", "['a']", "('a', 1)", "(1, 'a')", "", "prefix='a'")])
    add("str.replace", TEXTS, [f"replace({a})" for a in ("'l', 'L'", "'', '-'", "'', '-', 2", "'o', '', 1", "'X', 'YY', -1",
                                                         "' ', '', 0", "'é', 'e'")])
    add("str.replace", ["'abc'"], [f"replace({a})" for a in ("'a'", "1, 'b'", "'a', 1", "'a', 'b', 'c'", "old='a', new='b'",
                                                             "'a', 'b', count=1", "'a', 'b', none")])
    for name in ("removeprefix", "removesuffix"):
        add("str." + name, TEXTS, [f"{name}({a})" for a in ("'H'", "''", "'d'", "' '", "'\\n'")])
        add("str." + name, ["'abc'"], [f"{name}({a})" for a in ("1", "", "none")])
    for name in ("center", "ljust", "rjust"):
        add("str." + name, TEXTS, [f"{name}({a})" for a in ("0", "7", "20", "21, '*'", "16, 'é'", "-3")])
        add("str." + name, ["'abc'"], [f"{name}({a})" for a in ("", "'5'", "5.0", "5, ''", "5, 'ab'", "5, 1", "true", "none")])
    add("str.zfill", TEXTS + ["'+3'", "'--1'"], ["zfill(0)", "zfill(5)", "zfill(20)", "zfill(-1)"])
    add("str.zfill", ["'1'"], ["zfill()", "zfill('3')", "zfill(2.0)"])
    add("str.expandtabs", TEXTS + ["'a\\tb\\r\\tc'"], ["expandtabs()", "expandtabs(4)", "expandtabs(0)", "expandtabs(tabsize=1)",
                                                      "expandtabs(-1)"])
    add("str.join", ["''", "', '", "'é'"], [f"join({a})" for a in LISTS + DICTS + ["'abc'", "missing", "none", "1",
                                                                                 "['a', 1]", "{'a': 1}.items()", "{'a': 1}.keys()"]])
    add("str.translate", ["'abc'", "'é😀'"],
        [f"translate({a})" for a in ("{97: 'x', 98: none, 233: 'e'}", "'a'.maketrans('ab', 'xy')", "'a'.maketrans('ab', 'xy', 'c')",
                                     "'a'.maketrans({'a': 'zz', 98: none})", "{97: 98}", "{97: 1.5}", "none", "[]", "''.maketrans('a', '')",
                                     "''.maketrans({'ab': 1})", "{97: 1114112}", "{97: true}")])
    add("str.format", ["'{}'", "'{0!r}'", "'{:>8}'", "'{:<8}|'", "'{:^8}|'", "'{:*^9}'", "'{:08}'", "'{!s:.2}'"],
        [f"format({v})" for v in TEXTS[:6] + INTS + FLOATS + OTHERS[:3] + ["[1, 'a']", "{'a': 1}"]])
    add("str.format", [f"'{{:{s}}}'" for s in ("d", "b", "o", "x", "X", "#x", "#b", "#o", "+d", " d", ",", "_", "08d", "<6d", "^7", "=+8",
                                               "e", "E", "f", "F", "g", "G", "%", ".0f", ".3f", ".3e", ".3g", "010.2f", "+.1f", ",.2f", "n", "c", "s",
                                               ".2", "#.3g", "#.0f", "_x", "_d", "020,", "z", "5s", ".1%", "-^12.3f")],
        [f"format({v})" for v in INTS + FLOATS + ["65", "'a'", "1234567"]])
    add("str.format", ["'{a}'", "'{a[0]}'", "'{a.b}'", "'{a[b]}'", "'{0} {1}'", "'{} {}'", "'{} {0}'", "'{'", "'}'", "'{{}}'", "'{a!r:>5}'",
                       "'{:{}}'", "'{:{w}}'", "'{a!x}'", "'{!}'", "'{a:'", "'{0[}'", "'{-1}'", "'{a b}'"],
        ["format()", "format(1)", "format(1, 2)", "format(a=[1])", "format(a={'b': 'v'})", "format('x', 5)", "format('x', w=4)"])
    add("str.format_map", ["'{a} {b}'", "'{}'"], ["format_map({'a': 1, 'b': 2})", "format_map({})", "format_map()"])
    for name in ("index", "count"):
        add("list." + name, LISTS, [f"{name}({a})" for a in ("1", "'a'", "'x'", "none", "[1]", "true", "1.0")])
        add("list." + name, ["[1, 2, 1, 3, 1]", "(1, 2, 1)"], [f"{name}({a})" for a in ("1, 1", "1, 1, 2", "1, -2", "1, -100, 100", "", "1, 'a'",
                                                                                      "1, 10**30", "value=1")])
    add("list.other", LISTS, ["copy()", "append(1)", "pop()", "sort()", "reverse()", "insert(0, 1)", "extend([1])", "remove(1)", "clear()"])
    add("dict.get", DICTS, [f"get({a})" for a in ("'a'", "1", "'zz'", "'zz', 5", "none", "true", "1.0", "[]", "", "key='a'", "'a', 'b', 'c'")])
    for name in ("keys", "values", "items"):
        add("dict." + name, DICTS, [f"{name}()", f"{name}()|list", f"{name}()|length", f"{name}()|first", f"{name}(1)", f"{name}()|list|last"])
    add("dict.other", DICTS, ["copy()", "fromkeys(['x', 'y'])", "fromkeys('ab', 0)", "fromkeys()", "pop('a')", "update({})", "setdefault('a', 1)",
                              "clear()", "popitem()", "keys().isdisjoint(['a'])", "items().isdisjoint([])", "values().isdisjoint([])"])
    add("int.methods", [f"({i})" for i in INTS], ["bit_length()", "bit_count()", "as_integer_ratio()", "conjugate()", "real", "imag", "numerator",
                                                "denominator", "is_integer()", "hex()", "bit_length(1)"])
    add("float.methods", [f"({f})" for f in FLOATS], ["is_integer()", "as_integer_ratio()", "conjugate()", "hex()", "real", "imag", "numerator"])
    return groups


def filters():
    groups = {}

    def add(group, inputs, calls):
        groups.setdefault(group, []).extend(f"{s}|{c}" for s in inputs for c in calls)

    every = TEXTS + LISTS + DICTS + [f"({n})" for n in INTS + FLOATS] + OTHERS
    no_arguments = ("abs capitalize count e escape first float forceescape int items last length list lower max min pprint reverse|string "
                    "round safe sort string striptags sum title tojson trim unique|list upper urlencode wordcount xmlattr dictsort "
                    "filesizeformat reverse|list center wordwrap truncate indent join d default").split()
    for name in no_arguments:
        if name == "reverse|string":
            continue
        values = [v for v in every if not (v.startswith("namespace") and name not in ("string", "d", "default"))]
        add("filter." + name.split("|")[0], values, [name])
        add("filter." + name.split("|")[0], ["'a'", "[1]"], [name.split("|")[0] + "(nope=1)"])
    add("filter.replace", TEXTS + ["5", "none", "[1, 2]"], [f"replace({a})" for a in ("'l', 'L'", "'', '-'", "'a', 'b', 1", "1, 2", "'X', '', none")])
    add("filter.replace", ["'a'"], ["replace('a')", "replace()", "replace('a', 'b', 'c')"])
    add("filter.trim", TEXTS, ["trim('a1 H')", "trim(none)", "trim(1)"])
    add("filter.default", OTHERS + ["''", "0", "[]", "'x'"], ["default('D')", "default('D', true)", "default(default_value=3)", "d('', boolean=true)"])
    add("filter.center", TEXTS, ["center(5)", "center(20)", "center(-1)", "center('3')", "center(width=11)"])
    add("filter.indent", TEXTS, ["indent(2)", "indent('> ')", "indent(2, true)", "indent(2, false, true)", "indent(2, true, true)", "indent(first=true)",
                                 "indent(-1)", "indent(none)"])
    long = ["'the quick brown fox jumps over the lazy dog'", "'abcdefghijklmnopqrstuvwxyz'", "'well-known state-of-the-art x--y a-1 -b'",
            "'  two  spaces   here '", "'a\\n\\nlong-word\\n  b'", "'one--two---three (a-b) foo-bar-baz'"]
    add("filter.truncate", long + TEXTS[:6], [f"truncate({a})" for a in ("5", "10", "10, true", "10, false, '!'", "10, true, '', 0", "20, leeway=0", "2",
                                                                        "3, true", "-1", "'5'", "10, false, 1")])
    add("filter.wordwrap", long + TEXTS, [f"wordwrap({a})" for a in ("5", "10", "10, false", "12, true, '|'", "8, true, none, false", "1", "0", "-1", "4, false, '~', false")])
    add("filter.tojson", every, ["tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))", "tojson(sort_keys=true)",
                                 "tojson(indent='--')", "tojson(indent=0)"])
    add("filter.tojson", ["{'a': [1, {'b': []}], 'c': {}}"], ["tojson(indent=3)", "tojson(indent=none)", "tojson(false, 1)", "tojson(indent=2, separators=(';', '='))",
                                                            "tojson(indent=-1)", "tojson(indent=true)", "tojson(indent='x', sort_keys=true)"])
    add("filter.format", ["'%s %s'", "'%d'", "'%5.2f|'", "'%-5s|'", "'%(a)s'", "'%%'", "'%r'", "'%x'", "'%05d'", "'%+d'", "'%c'", "'%e'", "'%g'", "'%i'", "'%o'", "'%X'",
                          "'%#x'", "'% d'", "'%*d'", "'%.3s'", "'%a'", "'%u'", "'%q'", "'%'"],
        ["format()", "format(1)", "format(1, 2)", "format(1.5)", "format('x')", "format('é')", "format(a=1)", "format(65, 66)", "format(none, [1])", "format(3, -7)"])
    add("filter.int", ["'12'", "'0x1f'", "'1_000'", "' 7 '", "'-3.9'", "'abc'", "'1e3'", "'inf'", "'nan'", "'٣'", "'0b11'", "'1__0'", "'_1'", "'+5'", "''", "1e300", "'9' * 30"],
        ["int", "int(9)", "int(default=none)", "int(0, 16)", "int(0, 2)", "int(base=0)", "int(0, 8)", "int(0, 37)", "int(0, 1)"])
    add("filter.float", ["'1.5'", "'1e3'", "' 2 '", "'inf'", "'-Infinity'", "'nan'", "'abc'", "'1_0.5'", "'1_.5'", "'0x10'", "'.5'", "'5.'", "'1e'", "''", "'٣.٥'"],
        ["float", "float(1)", "float(default='x')"])
    add("filter.round", [f"({n})" for n in INTS + FLOATS + ["0.5", "-0.5", "3.14159", "1234.5678", "2.345"]],
        [f"round({a})" for a in ("1", "2", "-1", "-2", "0, 'ceil'", "1, 'floor'", "-1, 'ceil'", "2, 'common'", "0, 'x'", "'1'", "method='floor'", "precision=3", "none")])
    add("filter.filesizeformat", ["0", "1", "999", "1000", "1500", "1023", "1024", "1048576", "123456789", "10**12", "10**27", "'2048'", "1.5", "-5", "none"],
        ["filesizeformat", "filesizeformat(true)"])
    add("filter.join", LISTS + ["'abc'"], ["join(', ')", "join(1)", "join(d='-')", "join('|', 'k')", "join('|', attribute='n.m')", "join(none)"])
    add("filter.sort", LISTS + ["'hello'", "{'b': 1, 'a': 2}"], ["sort", "sort(true)", "sort(case_sensitive=true)", "sort(attribute='k')", "sort(reverse=true, attribute='k')",
                                                                "sort(attribute='k,n.m')", "sort(attribute=0)"])
    add("filter.unique", LISTS + ["'hello'"], ["unique|list", "unique(true)|list", "unique(attribute='k')|list"])
    for name in ("min", "max"):
        add("filter." + name, LISTS + ["'hello'", "{'b': 1}"], [name, name + "(true)", name + "(attribute='k')"])
    add("filter.dictsort", DICTS, ["dictsort", "dictsort(true)", "dictsort(false, 'value')", "dictsort(reverse=true)", "dictsort(by='x')", "dictsort(by='value', case_sensitive=true)"])
    add("filter.batch", LISTS, ["batch(2)|list", "batch(2, 'f')|list", "batch(0)|list", "batch(-1)|list", "batch(10, none)|list", "batch('2')|list", "batch()|list"])
    add("filter.slice", LISTS, ["slice(2)|list", "slice(2, 'f')|list", "slice(0)|list", "slice(-1)|list", "slice(7)|list", "slice(3, none)|list", "slice()|list"])
    add("filter.sum", LISTS, ["sum", "sum(start=5)", "sum('k')", "sum(start='a')", "sum(start=[])", "sum(attribute='k', start=1.5)"])
    add("filter.map", LISTS, ["map('string')|list", "map('upper')|list", "map(attribute='k')|list", "map(attribute='n.m', default='-')|list", "map()|list", "map('nope')|list",
                              "map('default', 'x')|list", "map(attribute=0)|list", "map('int', default=3)|list"])
    for name in ("select", "reject"):
        add("filter." + name, LISTS, [f"{name}|list", f"{name}('odd')|list", f"{name}('string')|list", f"{name}('equalto', 1)|list", f"{name}('in', [1, 'x'])|list", f"{name}('nope')|list"])
        add("filter." + name + "attr", LISTS, [f"{name}attr('k')|list", f"{name}attr('k', 'equalto', 2)|list", f"{name}attr('n.m', 'defined')|list", f"{name}attr()|list", f"{name}attr(0)|list"])
    add("filter.groupby", LISTS, ["groupby('k')", "groupby('k', default=0)", "groupby('n.m', default='x')", "groupby('n.m', case_sensitive=true)", "groupby(0)", "groupby()"])
    add("filter.attr", LISTS[:3] + DICTS + ["'a'", "1", "namespace(a=3)"], ["attr('a')", "attr('k')", "attr('upper')", "attr('__class__')", "attr(1)", "attr()"])
    add("filter.urlencode", ["[('a', 1), ('b', 'x y')]", "[1]", "'a b/é?&='", "{'a b': '/é'}", "[('a',)]", "5.5"], ["urlencode"])
    add("filter.xmlattr", ["{'a': 1, 'b': none, 'c': '<\"&>'}", "{'a b': 1}", "{1: 2}", "{'x': missing}", "{'x': '<'|safe}"], ["xmlattr", "xmlattr(false)"])
    add("filter.pprint", ["[1] * 40", "{'key%d' % 1: 'x' * 90, 'b': range(3)}", "['word ' * 10, 'other ' * 12]", "{'b': {'z': 1, 'a': ['x' * 50, 'y' * 50]}, 'a': ()}", "('a' * 90,)",
                          "'a b c ' * 30", "[[['x' * 30] * 3] * 2]", "{'k' * 60: ['v' * 30]}", "2**70", "[none, true, 1.5, 'é']"], ["pprint"])
    add("filter.striptags", ["'<p>a<br/> b</p>'", "'a < b > c'", "'<!-- x --> y <!-- z'", "'&lt;b&gt; &amp; &#39; &#x41; &nbsp;x &unknown;'", "'<!--><b>-->'", "' a  b '"], ["striptags"])
    add("filter.escape", ["'<a href=\"x\">&\\'</a>'", "'<'|safe", "['<']", "1"], ["e", "escape|escape", "forceescape", "e|upper", "safe|upper + '<'", "e + '<'", "e|string + '<'", "safe * 2",
                                                                                  "e|e", "safe|list", "e|replace('a', '<')", "e|length"])
    add("filter.safe methods", ["('<a b>'|safe)"], [f"list", "first"])
    groups["safe.methods"] = [f"[('<a b,c>'|safe).{m}]" for m in
                              ("upper()", "split()", "split(',')", "replace('a', '<')", "center(9, '<')", "strip('<')", "join(['<', '>'])", "partition(' ')",
                               "splitlines()", "title()", "format(1)", "ljust(9)", "zfill(9)", "isupper()", "find('a')", "translate({97: '<'})", "removeprefix('<')",
                               "expandtabs()", "swapcase()", "casefold()", "rsplit(' ', 1)", "rpartition(',')", "capitalize()", "encode")] + \
                             [f"[{e}]" for e in ("('<'|safe) + '<'", "'<' + ('<'|safe)", "('<'|safe) * 2", "('<ab'|safe)[0]", "('<ab'|safe)[1:]", "('%s<'|safe) % '<'",
                                                 "('%s %d'|safe) % ('<', 3)", "('{}<'|safe).format('<')", "('{:>3}'|safe).format('<')", "('<'|safe) ~ '<'", "('%(a)s'|safe) % {'a': '<'}",
                                                 "('%r'|safe) % '<'", "'%s' % ('<'|safe)", "'a'.join([('<'|safe)])", "[('<'|safe)]|join('&')", "('<'|safe)|upper", "('<'|safe)|trim",
                                                 "('<'|safe)|center(5)", "('<a'|safe)|title", "('<'|safe)|indent(2, true)", "('<a b'|safe)|truncate(2, true, '', 0)", "('<'|safe)|tojson",
                                                 "('<'|safe)|reverse", "('<'|safe)|format", "('%s'|safe)|format('<')", "('<'|safe)|string", "('<'|safe)|wordwrap(3)", "('<'|safe)|replace('<', '&')",
                                                 "('<'|safe) == '<'", "{('<'|safe): 1}['<']", "'<' in ('<a'|safe)")]
    return groups


def rest():
    groups = {}
    values = ["0", "3", "-7", "2.5", "true", "'ab'", "''", "[1, 2]", "[]", "(1,)", "{'a': 1}", "none", "missing", "10**20", "-0.0", "1e308", "range(3)", "2**53 + 1", "9007199254740992.0"]
    for op in ("+", "-", "*", "/", "//", "%", "**"):
        groups["operator " + op] = [f"({a}) {op} ({b})" for a, b in itertools.product(values, values)
                                    if not (op == "**" and (a == "10**20" or b in ("10**20", "2**53 + 1"))) and not (op == "*" and {a, b} & {"10**20", "2**53 + 1"})]
    groups["operator *"] += ["(10**20) * 3", "(10**20) * 2.5", "(2**53 + 1) * (2**53 + 1)"]
    groups["operator **"] += ["10**20 ** 1", "(10**20) ** 2", "(10**20) ** -1", "(10**20) ** 0.5", "2 ** 100", "(-2) ** 3", "(-8) ** (1/3)", "2 ** -2"]
    for op in ("==", "!=", "<", "<=", ">", ">=", "in", "not in"):
        groups["operator " + op] = [f"({a}) {op} ({b})" for a, b in itertools.product(values, values)]
    groups["operator == deep"] = [f"({a}) {op} ({b})" for op in ("==", "<", "in") for a, b in itertools.product(
        ["[1, 2.0]", "[1.0, 2]", "(1, 2)", "{'a': [1]}", "{'a': [true]}", "{}.keys()", "{1: 2}.keys()", "{1.0: 3}.keys()", "{1: 2}.items()", "[none]", "[[1], [2]]", "[[1], [2, 3]]", "'b'", "('a', 'b')"],
        repeat=2)]
    big = ["2**53 + 1", "2**60 + 1", "10**25", "10**400", "3", "7", "-(2**64)", "10**399 + 1"]
    groups["division of large integers"] = [f"({a}) / ({b})" for a, b in itertools.product(big, big)]
    groups["floor division"] = [f"({a}) {op} ({b})" for op in ("//", "%") for a, b in itertools.product(big + ["-3.5", "0.1", "-7", "1e300", "-0.0", "5.0"], repeat=2)]
    groups["unary"] = [f"{op}({v})" for op in ("-", "+", "not ") for v in values]
    groups["concat"] = [f"{a} ~ {b}" for a, b in itertools.product(values, ["'x'", "1.0", "none", "[1, 'a']", "missing"])]
    slices = ["0", "-1", "5", "1:", ":2", "1:3", "::-1", "::2", "-2:", ":-1", "3:1", "100:", "-100:2", "::0", "1:none", "'a'", "1.0", "true", "none", "10**30", "::10**30", "-10**30:", "4:0:-2"]
    # A slice of a constant that has none: jinja2 works it out before it renders, and then prints nothing.
    groups["slices"] = [f"({v if v == 'missing' else f'missing|default({v})'})[{s}]" for v in TEXTS[:3] + TEXTS[6:7] + ["'😀é'"] + LISTS[:8] + DICTS[1:2] + ["5", "none", "missing"] for s in slices if not (v.startswith("range") and "10**30" in s)]
    names = ("boolean callable defined escaped even false float integer iterable lower mapping none number odd sequence string true undefined upper filter test").split()
    every = TEXTS + LISTS + DICTS + [f"({n})" for n in INTS + FLOATS] + OTHERS + ["range", "'x'.upper"]
    for name in names:
        groups["test " + name] = [f"{v} is {name}" for v in every] + [f"'a' is {name}(1, 2)"]
    groups["test filter"] = [f"'{n}' is filter" for n in ("abs", "nope", "tojson")] + [f"'{n}' is test" for n in ("odd", "nope", "==")]
    pairs = ["1", "1.0", "true", "'a'", "'A'", "none", "[1]", "missing", "2", "0"]
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "equalto", "sameas", "divisibleby", "in", "greaterthan", "lessthan", "=="):
        if name == "==":
            continue
        groups["test " + name] = [f"{a} is {name}({b})" for a, b in itertools.product(pairs, pairs + ["[1, 'a']"]) if not (name == "sameas" and a == b and a in ("[1]", "1.0"))]
    specs = ("%d %i %s %r %a %5d %-5d| %05d %+d %x %X %#x %o %#o %e %.2e %f %.3f %g %G %10.4f %-10s| %.2s %c %% %u %5.1f% %(a)s %(a)d %*d %q %").split(" ")
    groups["operator % text"] = [f"'{s}' % ({v})" for s in specs for v in ["5", "-5", "2.75", "'text'", "'x'", "none", "[1, 2]", "(1,)", "(1, 2)", "{'a': 7}", "true", "10**20", "1e20", "()", "missing", "'é'"]]
    groups["printing"] = [v for v in every if not v.startswith("namespace")] + ["[%s]" % v for v in TEXTS + FLOATS + ["'it\\'s'", "'\"'", "'\\'\"'", "'\\x00\\x7f\\xad\\u200b'", "'\\ud7ff'", "1e22", "1e21", "123456789012345680.0", "5e-324", "1.7976931348623157e308"]]
    groups["globals"] = [f"range({a})|list" for a in ("3", "1, 4", "5, 0, -2", "0", "-1", "", "1, 2, 3, 4", "'3'", "2.0", "1, 5, 0", "100001", "true")] + \
                        [f"dict({a})" for a in ("", "a=1", "{'a': 1}", "{'a': 1}, b=2", "[['a', 1]]", "[('a', 1), ('b', 2)]", "[1]", "1", "['ab']", "[['a']]", "{'a': 1}.items()")] + \
                        ["joiner('-')() ~ 1", "cycler('a', 'b').next()", "cycler()", "cycler(1).current", "namespace(a=1).a", "namespace({'a': 2}).a", "namespace(1)", "raise_exception('x')",
                         "(1).foo", "'a'.foo", "missing.foo", "missing[0]", "none.foo", "[].foo", "{}['a']", "{}.a.b", "'a'['upper']()", "{'items': 1}.items", "{'items': 1}['items']", "{'x': 1}.x", "[1].0", "'ab'.0"]
    groups["conditions"] = [f"'y' if {v} else 'n'" for v in values] + [f"({a} and {b})" for a in ("0", "1", "''", "'x'", "missing") for b in ("2", "none")] + \
                           [f"({a} or {b})" for a in ("0", "1", "''", "'x'", "missing") for b in ("2", "none")] + ["1 < 2 < 3", "1 < 3 < 2", "1 == 1.0 == true", "not 1 == 2", "-2 ** 2", "2 ** 3 ** 2", "1 if false", "'a' 'b'"]
    return groups


def main():
    def too_long(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    groups = {}
    for part in (methods(), filters(), rest()):
        for name, expressions in part.items():
            groups.setdefault(name, []).extend(expressions)
    out = []
    for name, expressions in groups.items():
        cases = []
        for expression in dict.fromkeys(expressions):
            signal.alarm(5)
            try:
                text = _compile_jinja_template("{{ " + expression + " }}").render()
            except TimeoutError:
                continue
            except Exception:
                text = None
            signal.alarm(0)
            if text is not None and (" object at 0x" in text or "<function" in text or "<generator" in text or "<built-in" in text or len(text) > 2000 or "method of" in text):
                continue  # addresses; what only prints
            try:
                json.dumps(text, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                continue
            cases.append([expression, text])
        out.append({"name": name, "cases": cases})
    lines = ",\n".join('{"name": %s, "cases": [\n%s\n]}' % (json.dumps(g["name"]), ",\n".join(json.dumps(c, ensure_ascii=False) for c in g["cases"])) for g in out)
    sys.stdout.write('{"groups": [\n' + lines + "\n]}\n")


main()
