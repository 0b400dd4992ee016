//! Adapters: low-rank additions to weights that stay as they are (Hu et al., arXiv 2106.09685).

use std::path::PathBuf;

use annulus_yaml::{Problem, words};

use crate::Shape;

/// Adapters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The width of adapters.
    pub rank: usize,
    /// Adapters count `alpha / rank`.
    pub alpha: f64,
    /// Or `alpha / √rank` (arXiv 2312.03732).
    pub rslora: bool,
    /// The share of an adapter's inputs that it does not see in training.
    pub dropout: f64,
    /// The projections that get one, in the order of [`Target::WORDS`].
    pub targets: Vec<Target>,
    /// Parts that are trained themselves, in the order of [`Besides::WORDS`].
    pub train: Vec<Besides>,
    /// The PEFT folder to start from; none: fresh adapters.
    pub path: Option<PathBuf>,
}

/// A projection of a layer, by its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// The output of attention.
    Output,
    /// The gate of the feed-forward layer.
    Gate,
    /// The gated part of the feed-forward layer.
    Up,
    /// The output of the feed-forward layer.
    Down,
}

words!(Target {
    Query = "q_proj",
    Key = "k_proj",
    Value = "v_proj",
    Output = "o_proj",
    Gate = "gate_proj",
    Up = "up_proj",
    Down = "down_proj",
});

/// A part that is trained itself beside adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Besides {
    /// The embedding.
    Embeddings,
    /// All norms.
    Norms,
    /// The last projection.
    Head,
}

words!(Besides { Embeddings = "embeddings", Norms = "norms", Head = "head" });

impl Lora {
    /// How the name of an adapter's a ends: that of PEFT, as what is before it without a prefix.
    pub const A: &str = ".lora_A.weight";
    /// How that of its b does.
    pub const B: &str = ".lora_B.weight";

    /// True for the name of an adapter's parameter.
    pub fn is_adapter(name: &str) -> bool {
        name.ends_with(Lora::A) || name.ends_with(Lora::B)
    }

    /// The factor of an adapter's product.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Refuses what a model of `shape` does not have.
    ///
    /// # Errors
    /// The last projection is to be trained, but is the embedding.
    pub fn suits(&self, shape: &Shape) -> Result<(), Problem> {
        if self.trains(Besides::Head) && shape.tie_word_embeddings {
            let message = "the last projection is to be trained, but the model's is its embedding";
            return Err(Problem::new(message).hint("name the embedding instead"));
        }
        Ok(())
    }

    /// True for a part that is trained itself.
    pub fn trains(&self, what: Besides) -> bool {
        self.train.contains(&what)
    }
}

impl Target {
    /// Outputs and inputs of the projection.
    pub fn sizes(self, shape: &Shape) -> [u64; 2] {
        let [hidden, width] = [shape.hidden_size, shape.intermediate_size].map(|size| size as u64);
        let (queries, keys) = (shape.query_width(), shape.key_value_width());
        match self {
            Target::Query => [queries, hidden],
            Target::Key | Target::Value => [keys, hidden],
            Target::Output => [hidden, queries],
            Target::Gate | Target::Up => [width, hidden],
            Target::Down => [hidden, width],
        }
    }
}

/// In order, each once.
pub fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list.dedup();
    list
}
