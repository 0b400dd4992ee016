//! The experiment file that tests start from.

/// A complete experiment with every section in it.
pub(crate) const SMALL: &str = "\
# A small run over four ranks.
name: small
seed: 7

model:
  hidden_size: 128
  intermediate_size: 352
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2

data:
  tokens: 12k                 # inputs per sequence
  batch: 4

mesh: { sequence: 4, data: 2, deadline: 90s }

attention:
  strategy: striped
  mask: causal

memory: { recompute: layer, micro_batch: 1, loss_chunk: 1k }

optimizer:
  learning_rate: 3e-4
  betas: [0.9, 0.95]

schedule: { steps: 1_000, warmup: 20, decay: cosine }
every: { log: 1, evaluate: 50, checkpoint: 100 }
expect:
  evaluate/loss: { max: 2.5, of_first: 0.5 }
";

/// `SMALL` with one piece of it replaced.
///
/// # Panics
/// When the piece is not in it: the test would test nothing.
pub(crate) fn edited(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "`{from}` is not in the file");
    SMALL.replacen(from, to, 1)
}
