//! Chat templates of others: bounded in time, memory, output and nesting.

use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    short("C1 an endless loop", "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}{% endfor %}{% endfor %}{% endfor %}").short(),
    lazy("C1 a list of a milliard", "{{ ([1] * 1000000000) | length }}"),
    short("C1 a width of four milliards", "{{ \"%4000000000d\" | format(1) }}").short(),
    short("C1 batches of four milliards", "{{ [1] | batch(4000000000, 1) | list }}"),
    short("C1 slices of four milliards", "{{ [1] | slice(4000000000) | list }}"),
    short("C1 replacements of the empty text", "{% set a = \"x\" * 100000 %}{{ a | replace(\"\", a) | replace(\"\", a) }}"),
    short("C1 long separators", "{% set a = \"x\" * 1000000 %}{{ range(100000) | join(a) }}"),
    short("C1 doubling text", "{% set n = namespace(a=\"xxxxxxxx\") %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}{{ n.a }}").short(),
    short("C1 doubling lists", "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a | length }}"),
    short("C1 a macro that calls itself", "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"),
    short("C1 a long output", "{% for i in range(90000) %}{{ \"x\" * 10000 }}{% endfor %}"),
    lazy("C1 a deep value", "{% set n = namespace(a=[]) %}{% for i in range(50000) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a }}"),
    lazy("C1 a deep value as JSON", "{% set n = namespace(a=[]) %}{% for i in range(50000) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a | tojson }}"),
    short("C1 an indent of a milliard", "{{ \"a\\nb\" | indent(1000000000) }}"),
    short("C1 a text times a milliard", "{{ \"x\" * 1000000000000 }}"),
    short("C1 centred in a milliard", "{{ \"x\" | center(4000000000) }}"),
    nested("C1 twenty thousand nots", "f='not ' e=x").short(),
    Case { ends: &[0, 3], says: &[], ..nested("C1 fifty thousand signs", "f='-' e=1") },
    nested("C1 fifty thousand brackets", "f='(' e=1"),
    nested("C1 fifty thousand lists", "f='[' e=1"),
    chained("C1 fifty thousand joined texts", "f='~\"a\"'"),
    chained("C1 fifty thousand attributes", "f=.a"),
    chained("C1 fifty thousand filters", "f='|upper'"),
    chained("C1 fifty thousand sums", "f=+1"),
    chained("C1 fifty thousand calls", "f='()'"),
    chained("C1 fifty thousand comparisons", "f='and 1 '"),
    case(
        "C1 fifty thousand blocks",
        "{ yes '{% if 1 %}' | head -50000 | tr -d '\\n'; yes '{% endif %}' | head -50000 | tr -d '\\n'; } >chat_template.jinja; annulus data show chats.jsonl --chat --tokenizer tokenizer.json",
        &[0, 3],
        &[],
    ),
    case(
        "C1 a template of 100 MB",
        "head -c 100000000 /dev/zero | tr '\\0' a >chat_template.jinja; annulus data show chats.jsonl --chat --tokenizer tokenizer.json",
        &[3],
        &["chat_template.jinja"],
    ),
    case(
        "C1 ten thousand messages without a mark",
        "echo '{% for m in messages %}{{ m.content }} {% endfor %}' >chat_template.jinja; annulus data show chats.jsonl --chat --tokenizer tokenizer.json",
        &[0, 3],
        &[],
    )
    .made(|scene| scene.write("chats.jsonl", super::parts::chats(10_000))),
];

/// A template that must be refused soon, whatever it renders.
const fn short(name: &'static str, template: &'static str) -> Case {
    case(
        name,
        "printf %s \"$t\" >chat_template.jinja; annulus data show chats.jsonl --chat --tokenizer tokenizer.json",
        &[3],
        &["chat_template"],
    )
    .variable(template)
}

const fn nested(name: &'static str, what: &'static str) -> Case {
    case(
        name,
        "{ printf '{{ '; yes \"$f\" | head -50000 | tr -d '\\n'; printf '%s }}' \"$e\"; } >chat_template.jinja; annulus data show chats.jsonl --chat --tokenizer tokenizer.json",
        &[3],
        &["chat_template.jinja"],
    )
    .given(what)
}

/// As long as it is, it may be fine, if it is not nested for the one who reads it.
const fn chained(name: &'static str, what: &'static str) -> Case {
    case(
        name,
        "{ printf '{{ messages'; yes \"$f\" | head -50000 | tr -d '\\n'; printf ' }}'; } >chat_template.jinja; annulus data show chats.jsonl --chat --tokenizer tokenizer.json",
        &[0, 3],
        &[],
    )
    .given(what)
}

/// One that takes little, in the library of today.
const fn lazy(name: &'static str, template: &'static str) -> Case {
    Case { ends: &[0, 3], says: &[], ..short(name, template) }
}
