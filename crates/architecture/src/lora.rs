//! Adapters: low-rank additions to weights that stay as they are (Hu et al., arXiv 2106.09685).

use std::path::PathBuf;

use annulus_yaml::{Problem, words};

use crate::Shape;

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The width of adapters.
    pub rank: usize,
    /// The numerator of the adapters' factor, `alpha / rank`.
    pub alpha: f64,
    /// Whether the factor is `alpha / √rank` (rsLoRA, arXiv 2312.03732).
    pub rslora: bool,
    /// The probability that an input of an adapter is dropped in training.
    pub dropout: f64,
    /// The projections with an adapter, in the order of [`Target::WORDS`].
    pub targets: Vec<Target>,
    /// Parts that are trained in full, in the order of [`FullyTrained::WORDS`].
    pub train: Vec<FullyTrained>,
    /// The PEFT folder to start from; `None`: new adapters.
    pub path: Option<PathBuf>,
}

/// A projection of a layer, named by its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The projection to queries.
    Query,
    /// The projection to keys.
    Key,
    /// The projection to values.
    Value,
    /// The output projection of attention.
    Output,
    /// The gate projection of the feed-forward half.
    Gate,
    /// The up projection of the feed-forward half.
    Up,
    /// The down projection of the feed-forward half.
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

/// A part that may be trained in full beside adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FullyTrained {
    /// The embedding.
    Embeddings,
    /// All norms.
    Norms,
    /// The output projection (language-model head).
    Head,
}

words!(FullyTrained { Embeddings = "embeddings", Norms = "norms", Head = "head" });

impl Lora {
    /// The end of the name of an adapter's a: PEFT's, where the rest of the name has no prefix.
    pub const A: &str = ".lora_A.weight";
    /// The end of the name of an adapter's b.
    pub const B: &str = ".lora_B.weight";

    /// Whether a name is that of an adapter's parameter.
    pub fn is_adapter(name: &str) -> bool {
        name.ends_with(Lora::A) || name.ends_with(Lora::B)
    }

    /// The factor of an adapter's product.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Checks these adapters against a model of `shape`.
    ///
    /// # Errors
    /// When the output projection is to be trained, but is tied to the embedding.
    pub fn suits(&self, shape: &Shape) -> Result<(), Problem> {
        if self.trains(FullyTrained::Head) && shape.tie_word_embeddings {
            let message = "the last projection is to be trained, but the model's is its embedding";
            return Err(Problem::new(message).hint("name the embedding instead"));
        }
        Ok(())
    }

    /// Whether a part is trained in full.
    pub fn trains(&self, what: FullyTrained) -> bool {
        self.train.contains(&what)
    }
}

impl Target {
    /// The numbers of outputs and inputs of the projection.
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
