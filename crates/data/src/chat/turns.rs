//! What the assistant says in a conversation whose template does not tell: what comes on top of the conversation so far,
//! with its invitation to answer. That holds only where the beginning of a conversation is rendered the same whatever
//! follows, which is checked.
//!
//! Rendering every beginning takes time that grows with the square of the conversation. A long one is rendered twice, plain
//! and with marks around what the assistant says; a few turns are rendered as above, and every other turn that has the same
//! text around it as those is known by its marks. What is not (turns that call tools, white space that the template may trim)
//! is rendered by itself, as long as there is time.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Value as Json, json};

use super::learned::is_learned;
use super::{MARKS, Rendered, says, tools};

/// Bytes that are rendered turn by turn before a conversation counts as long.
const EVERY: usize = 1 << 26;

/// Turns of a long conversation that are rendered by themselves, at its beginning and at its end.
const PROBES: usize = 3;

/// What renders messages, with or without an invitation to answer.
pub(super) type Render<'a> = &'a dyn Fn(&[Json], bool) -> Result<String, String>;

/// Renders `messages`, and finds what the assistant says in those that are learned.
pub(super) fn rendered(messages: &[Json], render: Render<'_>) -> Result<Rendered, String> {
    let text = render(messages, false)?;
    let learned = |turn: &usize| is_learned(&messages[*turn]);
    let turns: Vec<usize> = (0..messages.len()).filter(learned).collect();
    let one = |&turn: &usize| by_itself(messages, turn, &text, render);
    let learned = if text.len().saturating_mul(turns.len()) <= EVERY {
        turns.iter().map(one).collect::<Result<_, _>>()?
    } else {
        long(messages, &turns, &text, render)?
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
    let before = match render(&messages[..turn], true) {
        // A template that looks at the first message finds none.
        Err(_) if turn == 0 => return first(messages, text, render),
        before => before?,
    };
    let after = render(&messages[..=turn], false)?;
    if after.starts_with(&before) && text.starts_with(&after) {
        let uninvited =
            if turn == 0 { uninvited(&after[before.len()..], &before, render) } else { 0 };
        return Ok(before.len() + uninvited..after.len());
    }
    Err(format!(
        "the template renders turn {} otherwise than what comes before and after it, and has no \
         `{{% generation %}}`",
        turn + 1
    ))
}

/// The length of the invitation with which the text of the first turn begins, where a template that invites after a message renders none
/// before all messages, as one that invites within its loop.
fn uninvited(first: &str, before: &str, render: Render<'_>) -> usize {
    let invites = render(&[], false).is_ok_and(|plain| plain != before);
    let invitation =
        invitation(render).filter(|invitation| !invites && first.starts_with(invitation));
    invitation.map_or(0, |invitation| invitation.len())
}

/// What invites to an answer after a question.
fn invitation(render: Render<'_>) -> Option<String> {
    let question = [json!({ "role": "user", "content": "?" })];
    let asked = render(&question, false).ok()?;
    Some(render(&question, true).ok()?.strip_prefix(asked.as_str())?.to_owned())
}

/// The turn of an assistant who begins the conversation, where a template renders nothing before it: its words, found by their
/// marks, stand behind what invites to an answer.
fn first(messages: &[Json], text: &str, render: Render<'_>) -> Result<Range<usize>, String> {
    let one = &messages[..1];
    let after = render(one, false)?;
    let words = marked(one, &after, render)?.remove(&0);
    let start = words.zip(invitation(render)).map(|(words, invitation)| (words.start, invitation));
    match start {
        Some((start, invitation))
            if after[..start].ends_with(&invitation) && text.starts_with(&after) =>
        {
            Ok(start..after.len())
        }
        _ => Err("the conversation begins with the assistant: the template needs `{% generation %}` to tell what it says"
            .to_owned()),
    }
}

/// All `turns` of a long conversation.
fn long(
    messages: &[Json],
    turns: &[usize],
    text: &str,
    render: Render<'_>,
) -> Result<Vec<Range<usize>>, String> {
    let said = marked(messages, text, render)?;
    let plain: Vec<usize> = turns.iter().copied().filter(|turn| said.contains_key(turn)).collect();
    let (first, rest) = plain.split_at(PROBES.min(plain.len()));
    let last = &rest[rest.len().saturating_sub(PROBES)..];
    let mut known = BTreeMap::new();
    for &turn in first.iter().chain(last) {
        known.insert(turn, by_itself(messages, turn, text, render)?);
    }
    // The text between the invitation and the words, and what ends them.
    let around = |turn: &usize| {
        let (whole, words) = (&known[turn], &said[turn]);
        Some((text.get(whole.start..words.start)?, text.get(words.end..whole.end)?))
    };
    let mut frames = first.iter().map(around);
    let frame = frames.next().flatten().filter(|frame| frames.all(|other| other == Some(*frame)));
    let learned = |turn: &usize| {
        let framed = said.get(turn).zip(frame).and_then(|(words, (head, tail))| {
            let alike = text[..words.start].ends_with(head) && text[words.end..].starts_with(tail);
            alike.then(|| words.start - head.len()..words.end + tail.len())
        });
        let found = known.get(turn).cloned().or(framed);
        found.map_or_else(|| by_itself(messages, *turn, text, render), Ok)
    };
    turns.iter().map(learned).collect()
}

/// Where in `text` the words of the assistant's plain turns are, by turn; none if marks around them change anything else.
fn marked(
    messages: &[Json],
    text: &str,
    render: Render<'_>,
) -> Result<BTreeMap<usize, Range<usize>>, String> {
    let (mut with_marks, mut turns) = (messages.to_vec(), Vec::new());
    for (turn, message) in with_marks.iter_mut().enumerate() {
        if let Some(words) = plain(message) {
            message["content"] = Json::String(format!("{}{words}{}", MARKS[0], MARKS[1]));
            turns.push(turn);
        }
    }
    let (mut plain, mut places) = (String::with_capacity(text.len()), Vec::new());
    for (index, part) in render(&with_marks, false)?.split(MARKS).enumerate() {
        let start = plain.len();
        plain.push_str(part);
        if index % 2 == 1 {
            places.push(start..plain.len());
        }
    }
    let alike = plain == text && places.len() == turns.len();
    Ok(if alike { turns.into_iter().zip(places).collect() } else { BTreeMap::new() })
}

/// What the assistant says in a turn where marks say no less: words that no template trims, and nothing besides.
fn plain(message: &Json) -> Option<&str> {
    let words = message["content"].as_str().filter(|_| says(message))?;
    let alone = tools::calls(message) == Ok(false) && !words.is_empty() && words.trim() == words;
    alone.then_some(words)
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
    fn shown(messages: &[Json], invite: bool, last: &str) -> String {
        let mut text = String::from("<s>");
        for (turn, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap();
            let end = if turn + 1 == messages.len() { last } else { "<end>" };
            text.extend(["<", role, ">", message["content"].as_str().unwrap(), end]);
        }
        text.push_str(if invite { "<assistant>" } else { "" });
        text
    }

    /// A template may invite after the last message only, within its loop over messages (Zephyr).
    #[test]
    fn an_invitation_is_not_learned_in_the_first_turn_either() {
        let messages = &conversation(4)[1..];
        let in_loop = |some: &[Json], invite| {
            Ok(shown(some, invite && !some.is_empty(), "<end>").split_off("<s>".len()))
        };
        let found = rendered(messages, &in_loop).unwrap();
        let said: Vec<&str> = found.learned.iter().map(|one| &found.text[one.clone()]).collect();
        assert_eq!(said, ["words of 1<end>", "words of 3<end>"]);
        // Without an invitation anywhere, who speaks is learned with what is said, in every turn.
        let never = |some: &[Json], _| Ok(shown(some, false, "<end>"));
        let found = rendered(messages, &never).unwrap();
        let said: Vec<&str> = found.learned.iter().map(|one| &found.text[one.clone()]).collect();
        assert_eq!(said, ["<assistant>words of 1<end>", "<assistant>words of 3<end>"]);
    }

    #[test]
    fn turns_of_a_long_conversation_are_those_of_rendering_every_beginning() {
        let messages = conversation(40);
        let render = |some: &[Json], invite| Ok(shown(some, invite, "<end>"));
        let exact = rendered(&messages, &render).unwrap();
        let turns: Vec<usize> = (1..40).step_by(2).collect();
        let found = long(&messages, &turns, &exact.text, &render).unwrap();
        assert_eq!(found, exact.learned);
        assert_eq!(&exact.text[found[7].clone()], "words of 15<end>");
    }

    #[test]
    fn turns_that_are_not_plain_are_rendered_by_themselves() {
        let mut messages = conversation(40);
        messages[9]["content"] = json!("\n words of 9 ");
        messages[11]["content"] = json!("");
        messages[13]["tool_calls"] = json!([{}]);
        let turns: Vec<usize> = (1..40).step_by(2).collect();
        for trims in [false, true] {
            let render = |some: &[Json], invite| {
                let mut some = some.to_vec();
                for message in some.iter_mut().filter(|_| trims) {
                    message["content"] = json!(message["content"].as_str().unwrap().trim());
                }
                Ok(shown(&some, invite, "<end>"))
            };
            let exact = rendered(&messages, &render).unwrap();
            assert_eq!(long(&messages, &turns, &exact.text, &render).unwrap(), exact.learned);
        }
    }

    /// As templates that look at the first message are, which begin with a system's words of their own.
    #[test]
    fn an_assistant_who_begins_is_found_by_a_template_that_needs_a_message() {
        let render = |some: &[Json], invite| match some {
            [] => Err("undefined value".to_owned()),
            _ => Ok(shown(some, invite, "<end>")),
        };
        let messages = &conversation(6)[1..];
        let lenient = |some: &[Json], invite| Ok(shown(some, invite, "<end>"));
        let found = rendered(messages, &render).unwrap();
        assert_eq!(found, rendered(messages, &lenient).unwrap());
        assert_eq!(&found.text[found.learned[0].clone()], "words of 1<end>");
        let mut messages = messages.to_vec();
        messages[0]["content"] = json!("");
        let error = rendered(&messages, &render).unwrap_err();
        assert!(error.starts_with("the conversation begins with the assistant"), "{error}");
        messages[0]["train"] = json!(false);
        assert_eq!(rendered(&messages, &render).unwrap().learned.len(), 2);
    }

    #[test]
    fn a_template_that_ends_conversations_otherwise_is_refused() {
        let render = |some: &[Json], invite| Ok(shown(some, invite, "<over>"));
        let error = rendered(&conversation(40), &render).unwrap_err();
        assert!(error.contains("turn 2 otherwise"), "{error}");
    }

    #[test]
    fn long_conversations_are_rendered_a_few_times() {
        let messages = conversation(40_000);
        let count = std::cell::Cell::new(0);
        let render = |some: &[Json], invite| {
            count.set(count.get() + 1);
            Ok(shown(some, invite, "<end>"))
        };
        assert_eq!(rendered(&messages, &render).unwrap().learned.len(), 20_000);
        assert_eq!(count.get(), 2 + 2 * 2 * PROBES);
    }
}
