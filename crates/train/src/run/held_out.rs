//! What identifies the text that a run holds out: losses of runs are losses of the same targets only where it is equal.

use annulus_data::Tokens;
use annulus_experiment::Experiment;
use annulus_sequence::Positions;

use crate::setup::data::HeldOut;
use crate::{Data, Result};

/// Positions of a sequence that are read at once: it may be longer than one process can hold.
const PART: usize = 1 << 20;

/// The fingerprint of the sequences that `experiment` evaluates, of their tokens, targets and documents: cut into sequences of another
/// length, the same text is other data, as its tokens have other contexts. Made-up sequences are drawn anew for each seed, so theirs is that
/// of what they are drawn from. `None`: nothing is held out.
pub(super) fn fingerprint(experiment: &Experiment, data: &Data) -> Result<Option<String>> {
    let Some(held_out) = &data.held_out else { return Ok(None) };
    let (mut hasher, tokens) = (blake3::Hasher::new(), experiment.data.tokens);
    if held_out.exact {
        let what = experiment.data.format.word();
        hasher.update(format!("{what} of {tokens}").as_bytes());
    } else {
        hasher.update(&(tokens as u64).to_le_bytes());
        let whole = Positions::all(tokens);
        for index in 0..held_out.sequences {
            for start in (0..tokens).step_by(PART) {
                let part = whole.within(start..(start + PART).min(tokens));
                update(&mut hasher, held_out, index, &part)?;
            }
        }
    }
    Ok(Some(hasher.finalize().to_hex().to_string()))
}

/// Adds the tokens of sequence `index` at `positions`, and the lengths of its documents.
fn update(
    hasher: &mut blake3::Hasher,
    held_out: &HeldOut,
    index: usize,
    positions: &Positions,
) -> Result<()> {
    let mut read = Tokens::with_room(1, positions);
    held_out.read(index, positions, &mut read)?;
    // A part has the documents of the whole sequence.
    let documents = read.documents.iter().flatten().filter(|_| positions.extent().start == 0);
    hasher.update(&documents.flat_map(|length| (*length as u64).to_le_bytes()).collect::<Vec<_>>());
    hasher.update(&read.inputs.iter().flat_map(|input| input.to_le_bytes()).collect::<Vec<_>>());
    hasher.update(&read.targets.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>());
    Ok(())
}
