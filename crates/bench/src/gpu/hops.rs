//! The tiles of a ring's hops, folded into a state that earlier hops have left, beside a whole call.
//!
//! Of contiguous shards a hop is all of a tile; of zigzag ones half of the keys or half of the queries; of striped ones what lies
//! below the diagonal, with or without it.

use annulus_ops::attention::{AttentionKernel, BackwardTile};
use annulus_sequence::{Layout, Mask};
use anyhow::Result;
use serde_json::json;

use super::{Numbers, Point, Variant, variants};
use crate::arguments;
use crate::record::Record;
use crate::statistics::Quartiles;

/// The number of positions on a rank.
const TOKENS: usize = 8 << 10;
const WORLD: usize = 4;

/// Name, layout, rank of the queries, rank of the keys, and the whole call for comparison.
const HOPS: [(&str, Layout, usize, usize, &str); 5] = [
    ("all", Layout::Contiguous, 2, 1, "full"),
    ("half of the keys", Layout::Zigzag, 2, 1, "full"),
    ("half of the queries", Layout::Zigzag, 1, 2, "full"),
    ("diagonal", Layout::Striped { width: 1 }, 2, 1, "causal"),
    ("below the diagonal", Layout::Striped { width: 1 }, 1, 2, "causal"),
];

/// Prints a line for every hop, kernel variant and pass, with `of_whole`: its speed over that of the whole call. Of backward only the
/// launch for a tile is timed on both sides: what comes before and after is once a call, not once a hop.
pub(super) fn run(
    numbers: &Numbers,
    dim: usize,
    arguments: &arguments::Gpu,
    record: &mut Record,
) -> Result<()> {
    let samples = arguments.samples;
    for (name, layout, queries, keys, whole) in HOPS {
        let shards = layout.shard(WORLD * TOKENS, WORLD)?;
        let mask = Mask::causal();
        let hop = Point::new(numbers, dim, name, &mask, [&shards[queries], &shards[keys]])?;
        let whole = Point::whole(numbers, TOKENS, dim, whole)?;
        for variant in variants(&numbers.processor, &arguments.passes, dim) {
            let plain = match variant.pass {
                "forward" => whole.measure(&variant, samples)?,
                _ => whole.carried(&variant, samples)?,
            };
            let speed = hop.carried(&variant, samples)?;
            let mut line = hop.line(&variant, speed);
            line.insert("bench".into(), json!("gpu hops"));
            line.insert("of_whole".into(), json!(speed.median / plain.median));
            record.tell(&line)?;
        }
    }
    Ok(())
}

impl Point {
    /// TFLOP/s of this tile alone, with its state and gradients carried from call to call.
    fn carried(&self, variant: &Variant, samples: usize) -> Result<Quartiles> {
        let Variant { kernels, pass, .. } = variant;
        let (inputs, scale) = (&self.inputs, self.inputs.scale()?);
        if *pass == "forward" {
            let mut state = kernels.begin(&inputs.q, scale)?;
            let run = || Ok(kernels.forward(&[self.tile()], &mut *state, &|| Ok(()))?);
            return self.speed(pass, samples, run);
        }
        let attended = inputs.forward(kernels, &self.visibility)?;
        let mut state = kernels.begin_backward(&inputs.q, &attended, &inputs.gradient, scale)?;
        let mut carried = None;
        let run = || {
            let tile = BackwardTile { tile: self.tile(), carried: carried.take() };
            carried = kernels.backward(vec![tile], &mut *state, &|| Ok(()))?.pop();
            Ok(())
        };
        self.speed(pass, samples, run)
    }
}
