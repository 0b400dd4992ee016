//! Paths as a shell would read them: `~/books`, `${DATA}/books`; `$${` is a `${` of the name itself.

use std::env;

/// `text` with the home folder for a leading `~`, and the environment's values for `${VAR}`; else what
/// is wrong with it.
pub(crate) fn expanded(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('\0') {
        return Err(String::from("name a file or folder"));
    }
    let home = text == "~" || text.starts_with("~/");
    let mut rest = if home { &text[1..] } else { text };
    let mut path = if home { value("HOME")? } else { String::new() };
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            path.extend([before, "${"]);
            rest = after;
            continue;
        }
        let (name, behind) = after.split_once('}').ok_or("a `${` is not closed by `}`")?;
        path.push_str(before);
        path.push_str(&value(name)?);
        rest = behind;
    }
    path.push_str(rest);
    Ok(path)
}

/// What [`expanded`] reads as exactly this path.
pub(crate) fn literal(path: &str) -> String {
    let home = path == "~" || path.starts_with("~/");
    format!("{}{}", if home { "./" } else { "" }, path.replace("${", "$${"))
}

fn value(name: &str) -> Result<String, String> {
    env::var(name)
        .map_err(|_| format!("the environment has no `{name}`: set it, or write the path out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_and_variables_are_filled_in_and_nothing_else_is() {
        let home = env::var("HOME").unwrap();
        assert_eq!(expanded("~/books").unwrap(), format!("{home}/books"));
        assert_eq!(expanded("~").unwrap(), home);
        assert_eq!(expanded("a/${HOME}/b${HOME}").unwrap(), format!("a/{home}/b{home}"));
        for plain in ["books/~x", "~other/books", "$HOME/books", "a b", "hf://a/b@c"] {
            assert_eq!(expanded(plain).unwrap(), plain);
        }
        for path in ["a/${HOME}/b", "a/$${x", "$${${HOME}", "${", "a b # c: [d]"] {
            assert_eq!(expanded(&literal(path)).unwrap(), path);
        }
        assert_eq!(literal("~/a"), "./~/a");
        for wrong in ["${NOT_SET_ANYWHERE}/x", "${HOME", ""] {
            assert!(expanded(wrong).is_err(), "{wrong}");
        }
    }
}
