"""Generated chat templates: every statement, filter and function of the sandbox, often put together wrongly."""

from __future__ import annotations

from tests.support.fuzzing import RandomInput

FILTERS = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "default",
    "dictsort",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
    "unheard",
]
METHODS = [
    "append",
    "capitalize",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "extend",
    "find",
    "format",
    "format_map",
    "get",
    "index",
    "isdigit",
    "items",
    "join",
    "keys",
    "ljust",
    "lower",
    "mro",
    "partition",
    "pop",
    "replace",
    "rstrip",
    "split",
    "splitlines",
    "strip",
    "title",
    "translate",
    "update",
    "upper",
    "values",
    "zfill",
    "__class__",
    "__init__",
    "__globals__",
]
FUNCTIONS = [
    "range",
    "dict",
    "namespace",
    "lipsum",
    "cycler",
    "joiner",
    "strftime_now",
    "raise_exception",
    "f",
    "loop",
    "self",
    "caller",
]
TESTS = [
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "number",
    "even",
    "odd",
    "divisibleby(2)",
    "sameas(1)",
    "in([1])",
]
NAMES = ["messages", "tools", "bos_token", "x", "ns", "loop", "nothing", "self", "m"]
LITERALS = ["''", "'a'", "'{:>9}'", "'%s'", "0", "1", "-1", "2", "99999", "1.5", "none", "true", "[]", "{}", "10 ** 12"]
ATOMS = NAMES + LITERALS
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "and", "or", "in", "not in"]

STATEMENTS = [
    "text {# comment #}",
    "{% break %}",
    "{% continue %}",
    "{% set ns = namespace(x=1) %}",
    "{% raw %}{{ {% endraw %}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% import 'x' as y %}",
    "{% do x %}",
    "{% end",
    "{{",
    "\x00",
    "\ud800",
]
# {e}: an expression.
WITH_EXPRESSION = [
    "{{{{ {e} }}}}",
    "{{{{- {e} -}}}}",
    "{{% set x = {e} %}}",
    "{{% set ns.x = {e} %}}",
    "{{% set x = [x, x] %}}{{% set x = x ~ {e} %}}",
]
# {b}, {c}: statements.
WITH_BODY = [
    "{{% for m in {e} %}}{b}{{% endfor %}}",
    "{{% for m in {e} recursive %}}{b}{{% endfor %}}",
    "{{% if {e} %}}{b}{{% else %}}{c}{{% endif %}}",
    "{{% macro f(x, y=1) %}}{b}{{% endmacro %}}",
    "{{% generation %}}{b}{{% endgeneration %}}",
    "{{% block b %}}{b}{{% endblock %}}",
    "{{% set x %}}{b}{{% endset %}}",
    "{{% call f(1) %}}{b}{{% endcall %}}",
    "{{% filter {f} %}}{b}{{% endfilter %}}",
    "{{% with m = {e} %}}{b}{{% endwith %}}",
]


def source(random: RandomInput) -> str:
    """The text of a template."""
    return "".join(_statement(random, random.randrange(4)) for _ in range(random.randrange(5)))


def _statement(random: RandomInput, depth: int) -> str:
    if depth == 0 or random.chance(0.3):
        if random.chance(0.3):
            return random.choice(STATEMENTS)
        return random.choice(WITH_EXPRESSION).format(e=_expression(random, random.randrange(4)))
    b, c = ("".join(_statement(random, depth - 1) for _ in range(random.randrange(3))) for _ in range(2))
    return random.choice(WITH_BODY).format(e=_expression(random, 2), b=b, c=c, f=random.choice(FILTERS))


def _expression(random: RandomInput, depth: int) -> str:
    if depth == 0:
        return random.choice(ATOMS)
    a, b, c = (_expression(random, random.randrange(depth)) for _ in range(3))
    names = ("", "", "indent=", "n=", "x=")
    arguments = ", ".join(random.choice(names) + value for value in (b, c)[: random.randrange(3)])
    return random.choice(
        [
            f"({a} {random.choice(OPERATORS)} {b})",
            f"{a} | {random.choice(FILTERS)}({arguments})",
            f"{a}.{random.choice(METHODS)}({arguments})",
            f"{random.choice(FUNCTIONS)}({arguments})",
            f"{a} is {random.choice(TESTS)}",
            f"{a}[{b}]",
            f"({a} if {b} else {c})",
            f"[{a}, {b}]",
            f"{{{a}: {b}}}",
            f"{a}[{b}::-1]",
        ]
    )
