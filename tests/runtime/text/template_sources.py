"""Generated chat templates: every statement, filter and function of the sandbox, often put together wrongly."""

from __future__ import annotations

from hypothesis import strategies as st

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
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "and", "or", "in", "not in"]

_atoms = st.sampled_from(NAMES + LITERALS)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arguments = st.lists(inner | st.tuples(st.sampled_from(["indent", "n", "x"]), inner).map("=".join), max_size=2).map(
        ", ".join
    )
    return st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(inner, st.sampled_from(FILTERS), arguments).map(lambda p: f"{p[0]} | {p[1]}({p[2]})"),
        st.tuples(inner, st.sampled_from(METHODS), arguments).map(lambda p: f"{p[0]}.{p[1]}({p[2]})"),
        st.tuples(st.sampled_from(FUNCTIONS), arguments).map(lambda p: f"{p[0]}({p[1]})"),
        st.tuples(inner, st.sampled_from(TESTS)).map(" is ".join),
        st.tuples(inner, inner).map(lambda p: f"{p[0]}[{p[1]}]"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
        st.tuples(inner, inner).map(lambda p: f"[{p[0]}, {p[1]}]"),
        st.tuples(inner, inner).map(lambda p: f"{{{p[0]}: {p[1]}}}"),
        st.tuples(inner, inner).map(lambda p: f"{p[0]}[{p[1]}::-1]"),
    )


expressions = st.recursive(_atoms, _larger, max_leaves=6)
_simple = st.one_of(
    expressions.map(lambda e: f"{{{{ {e} }}}}"),
    expressions.map(lambda e: f"{{{{- {e} -}}}}"),
    expressions.map(lambda e: f"{{% set x = {e} %}}"),
    expressions.map(lambda e: f"{{% set ns.x = {e} %}}"),
    expressions.map(lambda e: f"{{% set x = [x, x] %}}{{% set x = x ~ {e} %}}"),
    st.sampled_from(
        [
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
    ),
)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, max_size=3).map("".join)
    return st.one_of(
        st.tuples(expressions, body).map(lambda p: f"{{% for m in {p[0]} %}}{p[1]}{{% endfor %}}"),
        st.tuples(expressions, body).map(lambda p: f"{{% for m in {p[0]} recursive %}}{p[1]}{{% endfor %}}"),
        st.tuples(expressions, body, body).map(lambda p: f"{{% if {p[0]} %}}{p[1]}{{% else %}}{p[2]}{{% endif %}}"),
        body.map(lambda b: f"{{% macro f(x, y=1) %}}{b}{{% endmacro %}}"),
        body.map(lambda b: f"{{% generation %}}{b}{{% endgeneration %}}"),
        body.map(lambda b: f"{{% block b %}}{b}{{% endblock %}}"),
        body.map(lambda b: f"{{% set x %}}{b}{{% endset %}}"),
        body.map(lambda b: f"{{% call f(1) %}}{b}{{% endcall %}}"),
        st.tuples(st.sampled_from(FILTERS), body).map(lambda p: f"{{% filter {p[0]} %}}{p[1]}{{% endfilter %}}"),
        st.tuples(expressions, body).map(lambda p: f"{{% with m = {p[0]} %}}{p[1]}{{% endwith %}}"),
    )


sources = st.lists(st.recursive(_simple, _nested, max_leaves=8), max_size=4).map("".join)
