//! `evaluation:`, built.

use std::path::PathBuf;

use crate::values::Values;
use crate::{Asked, Evaluation};

pub(super) fn evaluation(values: &Values) -> Option<Evaluation> {
    Some(Evaluation {
        path: values.optional("evaluation.path", Values::text)?.map(PathBuf::from),
        tasks: values
            .optional("evaluation.tasks", |values, key| values.words(key, Asked::from_word))?,
        depths: values.size("evaluation.depths")?,
        samples: values.size("evaluation.samples")?,
        lengths: values.optional("evaluation.lengths", Values::sizes)?,
        windows: values.optional("evaluation.windows", Values::size)?,
        targets: values.optional("evaluation.targets", Values::size)?,
        against: values.optional("evaluation.against", Values::size)?,
    })
}
