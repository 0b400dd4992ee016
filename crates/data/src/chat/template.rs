//! A chat template, held to bounds: somebody else wrote it.
//!
//! It is compiled and rendered on a thread of its own ([`annulus_memory::confine`]): nesting is bounded by the length of
//! the source and the thread's stack, instructions by fuel, memory by the thread's share, and all of it by time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use annulus_memory::{Confined, Limits, confine};
use minijinja::value::Rest;
use minijinja::{Environment, ErrorKind, Value, context};
use minijinja_contrib::globals::{cycler, joiner};
use serde_json::Value as Json;

use super::MARKS;
use super::json::to_json;
use super::{jinja, python};
use crate::guard::guarded;

/// What the template is called in messages about it.
pub(super) const NAME: &str = "chat_template";

/// The longest source, in bytes: four times the longest in use. Nothing nests deeper than it is long.
const LONGEST: usize = 1 << 16;

/// Instructions of one rendering: some hundred for a message.
const FUEL: u64 = 100_000_000;

/// Memory that a rendering may take, in bytes, besides [`TIMES`] the length of what it is given.
const MEMORY: usize = 1 << 26;
const TIMES: usize = 32;

/// Of a thread that compiles or renders. A level of nesting takes about 600 bytes of stack.
const STACK: usize = 1 << 28;

/// What is said of a template that wants to know the date.
const DATED: &str =
    "it writes the day's date (`strftime_now`): the tokens would be others every day";

/// Seconds for a conversation, and bytes of it for which there is one more.
const SECONDS: u64 = 5;
const EVERY: usize = 1 << 15;

/// A template, compiled.
#[derive(Debug)]
pub(super) struct Template {
    environment: Environment<'static>,
    /// `bos_token` and its like.
    special: BTreeMap<String, String>,
}

impl Template {
    /// Compiles `source`, in which `{% generation %}` is a filter's block already.
    pub(super) fn new(
        source: String,
        special: BTreeMap<String, String>,
    ) -> Result<Arc<Template>, String> {
        if source.len() > LONGEST {
            return Err(format!("{} bytes, expected at most {LONGEST}", source.len()));
        }
        let compile = move || {
            let mut environment = environment();
            environment.add_template_owned(NAME, source).map_err(|error| described(&error))?;
            Ok(environment)
        };
        let environment = within_bounds(0, compile)?;
        Ok(Arc::new(Template { environment, special }))
    }

    /// The text of `messages`; with `invite`, the beginning of an answer.
    pub(super) fn text(
        &self,
        tools: &Json,
        messages: &[Json],
        invite: bool,
    ) -> Result<String, String> {
        let (messages, tools) = (python::list(messages), python::given(tools));
        let documents = ();
        let given = context! { messages, tools, documents, add_generation_prompt => invite };
        let all = context! { ..given, ..Value::from_serialize(&self.special) };
        let template = self.environment.get_template(NAME);
        let text = template.and_then(|template| template.render(all));
        text.map_err(|error| format!("`{NAME}`: {}", described(&error)))
    }
}

/// Runs what a template does to `input` bytes.
pub(super) fn within_bounds<T: Send + 'static>(
    input: usize,
    job: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let bytes = MEMORY.saturating_add(input.saturating_mul(TIMES));
    let seconds = SECONDS + (input / EVERY) as u64;
    let limits = Limits { bytes, time: Duration::from_secs(seconds), stack: STACK };
    let confined = confine(limits, move || guarded(job).unwrap_or_else(Err));
    confined.unwrap_or_else(|why| {
        Err(match why {
            Confined::Memory => format!("`{NAME}` wants more than {} MiB", bytes >> 20),
            Confined::Time => format!(
                "`{NAME}` does not end within {seconds} s; with `{{% generation %}}` in it, a long conversation is rendered but once"
            ),
            Confined::Panic => format!("`{NAME}`: its library failed"),
            Confined::Start(error) => format!("`{NAME}`: cannot start a thread for it: {error}"),
        })
    })
}

/// Where templates run: as transformers sets it, with fuel, and without `strftime_now`: with the day's date in it a text would have other
/// tokens every day. Templates that ask whether it is there have a date of their own.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    jinja::set(&mut environment);
    environment.add_filter("generation", |text: String| format!("{}{text}{}", MARKS[0], MARKS[1]));
    environment.add_filter("tojson", to_json);
    environment.set_formatter(python::write);
    environment.add_filter("string", python::text);
    environment.add_function("cycler", |items: Rest<Value>| cycler(items.0));
    environment.add_function("joiner", joiner);
    environment.add_function("raise_exception", |message: String| -> Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment
}

pub(super) fn described(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let what = if what.contains("strftime_now") { DATED } else { &what };
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what.to_owned(),
    }
}
