//! The source of a template, made ready for a library that knows no `{% generation %}`.

/// What begins a tag, an expression and a comment, and what ends each.
const MARKUP: [(&str, &str); 3] = [("{%", "%}"), ("{{", "}}"), ("{#", "#}")];

/// What may stand around the word of a tag.
const AROUND: [char; 5] = ['-', '+', ' ', '\t', '\n'];

/// `template` with the line breaks that Jinja sees, and with `{% generation %}` as a filter's block within a scope of its own: it is
/// trimmed as any block is, and what is set in it ends with it. Also whether there is one.
pub(super) fn prepared(template: &str) -> (String, bool) {
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(template.len());
    let (mut rest, mut found, mut is_raw) = (&*template, false, false);
    while let Some((at, close)) = next(rest, is_raw) {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        // What is in quotes ends no tag; comments have none.
        let inside = tag.get(2..).unwrap_or_default();
        let end = if close == "#}" { inside.find(close) } else { unquoted(inside, close) };
        let (inside, after) = inside.split_at(end.unwrap_or(inside.len()));
        if close != "%}" {
            out.push_str(&tag[..2 + inside.len()]);
            rest = after;
            continue;
        }
        let word = inside.trim_matches(AROUND);
        is_raw = word == "raw";
        found |= word == "generation";
        out.push_str("{%");
        out.push_str(&match word {
            "generation" => inside.replace(word, "with %}{% filter generation"),
            "endgeneration" => inside.replace(word, "endfilter %}{% endwith"),
            _ => inside.to_owned(),
        });
        rest = after;
    }
    out.push_str(rest);
    (out, found)
}

/// Where the next tag, expression or comment begins, and what ends it; where all is raw, only the tag that ends that.
fn next(text: &str, is_raw: bool) -> Option<(usize, &'static str)> {
    let mut places = text.match_indices('{').map(|(at, _)| at);
    places.find_map(|at| {
        let (open, close) = MARKUP.iter().find(|(open, _)| text[at..].starts_with(open))?;
        let is_end = || text[at + open.len()..].trim_start_matches(AROUND).starts_with("endraw");
        (!is_raw || *close == "%}" && is_end()).then_some((at, *close))
    })
}

/// Where `close` is in `text`, outside of quotes.
fn unquoted(text: &str, close: &str) -> Option<usize> {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, letter) in text.char_indices() {
        match quote {
            None if text[at..].starts_with(close) => return Some(at),
            None => quote = Some(letter).filter(|letter| matches!(letter, '\'' | '"')),
            Some(_) if is_escaped => is_escaped = false,
            Some(open) if letter == open => quote = None,
            Some(_) => is_escaped = letter == '\\',
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_is_a_filter_in_a_scope_of_its_own() {
        for (template, wanted) in [
            (
                "{%- generation -%}a{% endgeneration +%}",
                "{%- with %}{% filter generation -%}a{% endfilter %}{% endwith +%}",
            ),
            ("{%generation%}", "{%with %}{% filter generation%}"),
            (
                "{{ '{% generation %}' }}{% generation %}",
                "{{ '{% generation %}' }}{% with %}{% filter generation %}",
            ),
            (
                "{% set a = \"%}{%\\\"\" %}{% generation %}",
                "{% set a = \"%}{%\\\"\" %}{% with %}{% filter generation %}",
            ),
        ] {
            assert_eq!(prepared(template), (wanted.to_owned(), true), "{template}");
        }
    }

    #[test]
    fn comments_and_raw_text_name_no_generation() {
        for template in [
            "{# Use {% generation %} to mark, it's said #}a",
            "{#- {% generation %}",
            "{% raw %}{% generation %}{{ ' {# {% endgeneration %}{%- endraw -%}a",
            "{{ '{% generation %}' }}",
            "{% if a == '{%",
            "{",
        ] {
            assert_eq!(prepared(template), (template.to_owned(), false), "{template}");
        }
        let (source, found) = prepared("{% raw %}'{% endraw %}{# ' #}{% generation %}'");
        let wanted = "{% raw %}'{% endraw %}{# ' #}{% with %}{% filter generation %}'";
        assert_eq!((source.as_str(), found), (wanted, true));
    }

    #[test]
    fn line_breaks_are_those_of_jinja() {
        assert_eq!(prepared("a\r\nb\rc\n\r\n"), ("a\nb\nc\n\n".to_owned(), false));
    }
}
