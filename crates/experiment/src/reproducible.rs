//! The key `reproducible`, and what does not go with strict.

use annulus_architecture::Dtype;
use annulus_machine::blocks::strict_block;
use annulus_sequence::Part;
use annulus_yaml::{Problem, words};

use crate::{Experiment, Kernel, wire_key};

/// The key `reproducible`: between which runs bits agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reproducible {
    /// Runs on the same ranks with the same split.
    Layout,
    /// Runs on any ranks, however they split a sequence.
    Strict,
}

words!(Reproducible { Layout = "layout", Strict = "strict" });

/// The path of the key `reproducible`.
const KEY: &str = "reproducible";

/// Refuses what order-free sums do not support.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    if experiment.reproducible == Reproducible::Layout {
        return Vec::new();
    }
    let rules = [length, ranks, kernel, wire, chunk];
    rules.iter().flat_map(|rule| rule(experiment)).collect()
}

/// A problem at `key` where that is written, else at `reproducible`.
fn problem(experiment: &Experiment, key: &str, message: String, hint: &str) -> Problem {
    let key = if experiment.places.contains(key) { key } else { KEY };
    experiment.places.problem(key, message).hint(String::from(hint))
}

fn length(experiment: &Experiment) -> Vec<Problem> {
    let tokens = experiment.data.tokens;
    if strict_block(tokens).is_some() {
        return Vec::new();
    }
    let message = format!(
        "`reproducible: strict` needs `data.tokens` to be a multiple of 16, found {tokens}"
    );
    let next = tokens.next_multiple_of(16);
    let near: Vec<String> =
        [next - 16, next].iter().filter(|n| **n > 0).map(usize::to_string).collect();
    let hint = format!("set `data.tokens` to {}; a multiple of 128 is fastest", near.join(" or "));
    vec![problem(experiment, "data.tokens", message, &hint)]
}

fn ranks(experiment: &Experiment) -> Vec<Problem> {
    if experiment.mesh.tensor == 1 {
        return Vec::new();
    }
    let message = format!(
        "`reproducible: strict` does not go with {} tensor-parallel ranks, whose sums over features depend on their number",
        experiment.mesh.tensor
    );
    let hint = "split the sequence instead: `mesh.sequence`";
    vec![problem(experiment, "mesh.tensor", message, hint)]
}

fn kernel(experiment: &Experiment) -> Vec<Problem> {
    if experiment.attention.kernel == Kernel::Fused {
        return Vec::new();
    }
    let message = String::from("`reproducible: strict` is a matter of the fast kernel");
    vec![problem(experiment, "attention.kernel", message, "remove `attention.kernel`")]
}

fn wire(experiment: &Experiment) -> Vec<Problem> {
    let sums = [Part::Gradient, Part::QueryGradient];
    let wire = experiment.wire();
    let narrow = sums.into_iter().filter(|part| wire.of(*part).bytes() < Dtype::F32.bytes());
    let said = |part: Part| {
        let key = format!("attention.wire.{}", wire_key(part));
        let message = format!(
            "`reproducible: strict` sends sums as they are, found `{key}: {}`",
            wire.of(part).word()
        );
        problem(experiment, &key, message, "remove it")
    };
    narrow.map(said).collect()
}

fn chunk(experiment: &Experiment) -> Vec<Problem> {
    let (block, chunk) = (experiment.block(), experiment.memory.mlp_chunk);
    let wrong = block.zip(chunk).filter(|(block, chunk)| !chunk.is_multiple_of(*block));
    let said = |(block, chunk): (usize, usize)| {
        let message = format!(
            "`reproducible: strict` takes rows in whole blocks of {block} tokens, found {chunk}"
        );
        problem(experiment, "memory.mlp_chunk", message, "use a multiple")
    };
    wrong.into_iter().map(said).collect()
}
