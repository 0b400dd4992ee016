//! What the assistant says in a conversation whose template does not tell: what comes on top of the conversation so far,
//! with its invitation to answer. That holds only where the beginning of a conversation is rendered the same whatever
//! follows, which is checked.
//!
//! Rendering every beginning takes time that grows with the square of the conversation. A long one is rendered twice, plain
//! and with marks around what the assistant says; a few turns are rendered as above, and every other turn must have the
//! same text around it as those.

use std::ops::Range;

use serde_json::Value as Json;

use super::{MARKS, Rendered, says};

/// Bytes that are rendered turn by turn before a conversation counts as long.
const EVERY: usize = 1 << 26;

/// Turns of a long conversation that are rendered by themselves, at its beginning and at its end.
const PROBES: usize = 3;

/// What renders messages, with or without an invitation to answer.
pub(super) type Render<'a> = &'a dyn Fn(&[Json], bool) -> Result<String, String>;

/// Renders `messages`, and finds what the assistant says in them.
pub(super) fn rendered(messages: &[Json], render: Render<'_>) -> Result<Rendered, String> {
    let text = render(messages, false)?;
    let turns: Vec<usize> = (0..messages.len()).filter(|&turn| says(&messages[turn])).collect();
    let one = |&turn: &usize| by_itself(messages, turn, &text, render);
    let learned = if text.len().saturating_mul(turns.len()) <= EVERY {
        turns.iter().map(one).collect::<Result<_, _>>()?
    } else {
        let (first, rest) = turns.split_at(PROBES.min(turns.len()));
        let (middle, last) = rest.split_at(rest.len().saturating_sub(PROBES));
        let probes: Vec<_> = first.iter().chain(last).map(one).collect::<Result<_, _>>()?;
        long(messages, middle.len(), &text, &probes, render)?
    };
    Ok(Rendered { text, learned })
}

/// The assistant's turn in `text`, found by rendering what comes before it, and that with it.
fn by_itself(
    messages: &[Json],
    turn: usize,
    text: &str,
    render: Render<'_>,
) -> Result<Range<usize>, String> {
    let before = render(&messages[..turn], true)?;
    let after = render(&messages[..=turn], false)?;
    if after.starts_with(&before) && text.starts_with(&after) {
        return Ok(before.len()..after.len());
    }
    Err(format!(
        "the template renders turn {} otherwise than what comes before and after it, and has no \
         `{{% generation %}}`",
        turn + 1
    ))
}

/// All turns of a long conversation, of which the first and the last are known as `probes`.
fn long(
    messages: &[Json],
    middle: usize,
    text: &str,
    probes: &[Range<usize>],
    render: Render<'_>,
) -> Result<Vec<Range<usize>>, String> {
    let uneven = || {
        "the conversation is long, and the template, which has no `{% generation %}`, does not render all of its turns alike"
            .to_owned()
    };
    let said = marked(messages, text, render)?.ok_or_else(uneven)?;
    let (first, last) = probes.split_at(PROBES);
    // The text between the invitation and the words, and what ends them.
    let around = |turn: &Range<usize>, words: &Range<usize>| {
        Some((text.get(turn.start..words.start)?, text.get(words.end..turn.end)?))
    };
    let (head, tail) = around(&first[0], &said[0]).ok_or_else(uneven)?;
    if (1..PROBES).any(|turn| around(&first[turn], &said[turn]) != Some((head, tail))) {
        return Err(uneven());
    }
    let mut learned = first.to_vec();
    for words in &said[PROBES..PROBES + middle] {
        if !text[..words.start].ends_with(head) || !text[words.end..].starts_with(tail) {
            return Err(uneven());
        }
        learned.push(words.start - head.len()..words.end + tail.len());
    }
    learned.extend_from_slice(last);
    Ok(learned)
}

/// Where in `text` the words of every turn of the assistant are, if marks around them change nothing else.
fn marked(
    messages: &[Json],
    text: &str,
    render: Render<'_>,
) -> Result<Option<Vec<Range<usize>>>, String> {
    let mut with_marks = messages.to_vec();
    for message in with_marks.iter_mut().filter(|message| says(message)) {
        let words = message["content"].as_str().unwrap_or_default();
        // Templates trim: marks would keep white space from it.
        if words.is_empty() || words.trim() != words {
            return Ok(None);
        }
        message["content"] = Json::String(format!("{}{words}{}", MARKS[0], MARKS[1]));
    }
    let (mut plain, mut places) = (String::with_capacity(text.len()), Vec::new());
    for (index, part) in render(&with_marks, false)?.split(MARKS).enumerate() {
        let start = plain.len();
        plain.push_str(part);
        if index % 2 == 1 {
            places.push(start..plain.len());
        }
    }
    let turns = messages.iter().filter(|message| says(message)).count();
    Ok((plain == text && places.len() == turns).then_some(places))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conversation(turns: usize) -> Vec<Json> {
        let message = |turn: usize| {
            let role = if turn.is_multiple_of(2) { "user" } else { "assistant" };
            json!({ "role": role, "content": format!("words of {turn}") })
        };
        (0..turns).map(message).collect()
    }

    /// `<role>words<end>` for every message, and an invitation; `last`: the last message ends otherwise.
    fn plain(messages: &[Json], invite: bool, last: &str) -> String {
        let mut text = String::from("<s>");
        for (turn, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap();
            let end = if turn + 1 == messages.len() { last } else { "<end>" };
            text.extend(["<", role, ">", message["content"].as_str().unwrap(), end]);
        }
        text.push_str(if invite { "<assistant>" } else { "" });
        text
    }

    #[test]
    fn turns_of_a_long_conversation_are_those_of_rendering_every_beginning() {
        let messages = conversation(40);
        let render = |some: &[Json], invite| Ok(plain(some, invite, "<end>"));
        let exact = rendered(&messages, &render).unwrap();
        let (first, last) = (&exact.learned[..PROBES], &exact.learned[20 - PROBES..]);
        let probes = [first, last].concat();
        let found = long(&messages, 20 - 2 * PROBES, &exact.text, &probes, &render).unwrap();
        assert_eq!(found, exact.learned);
        assert_eq!(&exact.text[found[7].clone()], "words of 15<end>");
    }

    #[test]
    fn a_template_that_ends_conversations_otherwise_is_refused() {
        let render = |some: &[Json], invite| Ok(plain(some, invite, "<over>"));
        let error = rendered(&conversation(40), &render).unwrap_err();
        assert!(error.contains("turn 2 otherwise"), "{error}");
    }

    #[test]
    fn long_conversations_are_rendered_a_few_times() {
        let messages = conversation(40_000);
        let count = std::cell::Cell::new(0);
        let render = |some: &[Json], invite| {
            count.set(count.get() + 1);
            Ok(plain(some, invite, "<end>"))
        };
        assert_eq!(rendered(&messages, &render).unwrap().learned.len(), 20_000);
        assert_eq!(count.get(), 2 + 2 * 2 * PROBES);
    }
}
