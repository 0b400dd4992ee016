//! `evaluation:`, built.

use std::path::PathBuf;

use crate::Evaluation;
use crate::values::Values;

pub(super) fn evaluation(values: &Values) -> Option<Evaluation> {
    Some(Evaluation {
        path: values.optional("evaluation.path", Values::text)?.map(PathBuf::from),
        lengths: values.optional("evaluation.lengths", Values::sizes)?,
        windows: values.size("evaluation.windows")?,
        targets: values.optional("evaluation.targets", Values::size)?,
        against: values.optional("evaluation.against", Values::size)?,
    })
}
