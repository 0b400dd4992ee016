//! A line of `metrics.jsonl` as it is read: a run has many, so each takes little memory.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use annulus_experiment::tags::EVALUATE_LOSS;
use serde_json::{Map, Value as Json};

use crate::sink::largest;

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) step: u64,
    /// Values by tag, in the line's order.
    pub(crate) values: Vec<(Arc<str>, LoggedValue)>,
}

/// A logged value. What is not finite, and so `null`, is NaN.
#[derive(Clone, Debug)]
pub(crate) enum LoggedValue {
    /// One number for the whole run.
    Number(f64),
    /// A number for every rank.
    PerRank(Box<[f64]>),
}

impl LoggedValue {
    /// The values by rank; a number for the whole run is a list of one.
    pub(crate) fn each(&self) -> &[f64] {
        match self {
            LoggedValue::Number(number) => std::slice::from_ref(number),
            LoggedValue::PerRank(ranks) => ranks,
        }
    }

    /// The value as one number; of values by rank the largest.
    pub(crate) fn most(&self) -> f64 {
        largest(self.each().iter().copied())
    }

    fn read(value: &Json) -> LoggedValue {
        let number = |value: &Json| value.as_f64().unwrap_or(f64::NAN);
        match value {
            Json::Array(ranks) => LoggedValue::PerRank(ranks.iter().map(number).collect()),
            one => LoggedValue::Number(number(one)),
        }
    }
}

impl Line {
    /// The value of a tag.
    pub(crate) fn get(&self, tag: &str) -> Option<&LoggedValue> {
        self.values.iter().find(|(known, _)| **known == *tag).map(|(_, value)| value)
    }

    /// The tags of its values.
    pub(crate) fn tags(&self) -> impl Iterator<Item = &Arc<str>> {
        self.values.iter().map(|(tag, _)| tag)
    }

    /// Whether this line has the evaluation after step `step`.
    pub(crate) fn is_evaluated_at(&self, step: u64) -> bool {
        self.step == step && self.has_evaluation()
    }

    /// Whether this line's step was evaluated.
    pub(crate) fn has_evaluation(&self) -> bool {
        self.get(EVALUATE_LOSS).is_some()
    }
}

/// Parses lines that have most of their tags in common: each tag is kept once.
#[derive(Debug, Default)]
pub(crate) struct Parser(RefCell<HashSet<Arc<str>>>);

impl Parser {
    /// The line of this text; `None`: it is none.
    pub(crate) fn line(&self, text: &str) -> Option<Line> {
        let (step, values) = object(text)?;
        Some(self.of(step, &values))
    }

    /// As [`Parser::line`]; the error says what is wrong with it.
    pub(crate) fn checked(&self, text: &str) -> Result<Line, String> {
        let is_number = |value: &Json| value.is_number() || value.is_null();
        let (step, values) = object(text).ok_or("no object of JSON with a whole number `step`")?;
        let wrong = values.iter().find(|(_, value)| match value {
            Json::Array(ranks) => !ranks.iter().all(is_number),
            value => !is_number(value),
        });
        wrong.map_or(Ok(()), |(tag, _)| {
            Err(format!("`{tag}` is neither a number nor a list of numbers"))
        })?;
        Ok(self.of(step, &values))
    }

    /// The line of a step with these values.
    pub(crate) fn of(&self, step: u64, values: &Map<String, Json>) -> Line {
        let of = |(tag, value): (&String, &Json)| (self.tag(tag), LoggedValue::read(value));
        Line { step, values: values.iter().map(of).collect() }
    }

    fn tag(&self, tag: &str) -> Arc<str> {
        let mut tags = self.0.borrow_mut();
        if let Some(known) = tags.get(tag) {
            return known.clone();
        }
        let new: Arc<str> = tag.into();
        tags.insert(new.clone());
        new
    }
}

/// The step and the values of a line.
fn object(text: &str) -> Option<(u64, Map<String, Json>)> {
    let mut values: Map<String, Json> = serde_json::from_str(text).ok()?;
    let step = values.shift_remove("step")?.as_u64()?;
    Some((step, values))
}
