//! How many elements a model has, and how many of them are trained.

use annulus_architecture::{FullyTrained, Shape, Target};
use annulus_experiment::Recompute;

use crate::{LayerGroup, Plan};

/// Numbers of elements of a rank's parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Elements of all parameters, adapters included.
    pub(crate) all: u64,
    /// Elements of the parameters that are trained.
    pub(crate) trained: u64,
    /// Whether the output projection (language-model head) is trained.
    pub(crate) head: bool,
}

fn classes(shape: &Shape) -> usize {
    shape.vocab_size.unwrap_or_default()
}

impl Plan {
    /// Elements of a rank's parameters: of the whole model, unless ranks are tensor-parallel.
    pub(crate) fn counts(&self) -> Counts {
        self.counts_of(&self.own)
    }

    pub(crate) fn counts_of(&self, shape: &Shape) -> Counts {
        let all = shape.elements();
        let Some(lora) = &self.experiment.lora else {
            return Counts { all, trained: all, head: true };
        };
        let [rank, layers, hidden, vocabulary] =
            [lora.rank, shape.num_hidden_layers, shape.hidden_size, classes(shape)]
                .map(|size| size as u64);
        let mut adapters = 0;
        for target in &lora.targets {
            let [outputs, inputs] = target.sizes(shape);
            adapters += layers * rank * (outputs + inputs);
        }
        let mut trained = adapters;
        for what in &lora.train {
            trained += match what {
                FullyTrained::Norms => layers * shape.norms() + hidden,
                FullyTrained::Embeddings | FullyTrained::Head => vocabulary * hidden,
            };
        }
        Counts { all: all + adapters, trained, head: lora.trains(shape.projects_with()) }
    }

    /// Whether a part is trained in full: without adapters, every part.
    pub(crate) fn trains(&self, part: FullyTrained) -> bool {
        self.experiment.lora.as_ref().is_none_or(|lora| lora.trains(part))
    }

    /// Floating-point operations of an optimizer step under the plan's mask: [`Plan::flops_of`] the pairs that it shows.
    pub fn flops(&self) -> f64 {
        let of_group = |(number, group): (usize, &LayerGroup)| {
            let pairs: f64 = self.ranks.iter().map(|rank| rank.pairs[number] as f64).sum();
            pairs * group.layers.len() as f64
        };
        let pairs: f64 = self.groups.iter().enumerate().map(of_group).sum();
        // Tensor-parallel ranks compute the same pairs, each with its own heads.
        self.flops_of(pairs / self.experiment.mesh.tensor as f64)
    }

    /// Floating-point operations of an optimizer step that computes so many (query, key) `pairs`, over all sequences and layers: all ranks
    /// together, as model FLOPs utilisation counts them. For a token 6 per parameter, or 4 where it is not trained (embedding lookups
    /// excluded), and for a visible pair 12 · `head_dim` per query head. What is computed again does not count (PaLM, arXiv 2204.02311,
    /// appendix B, with the pairs that the mask shows).
    pub fn flops_of(&self, pairs: f64) -> f64 {
        let shape = &self.shape;
        let Counts { all, trained, .. } = self.counts_of(shape);
        let each = |trained: bool| if trained { 6.0 } else { 4.0 };
        let mut per_token = each(true) * trained as f64 + each(false) * (all - trained) as f64;
        if !shape.tie_word_embeddings {
            let looked_up = (self.vocabulary() * shape.hidden_size) as f64;
            per_token -= each(self.trains(FullyTrained::Embeddings)) * looked_up;
        }
        let data = &self.experiment.data;
        let per_pair = (12 * shape.head_dim * shape.num_attention_heads) as f64;
        per_token * (data.batch * data.tokens) as f64 + per_pair * pairs
    }

    /// Floating-point operations per token that a rank computes in products with weights: of a layer forward, of a layer backward, and of
    /// the loss. With activation checkpointing, backward recomputes a layer's projections except the last of each half. Weights that are
    /// not trained have no gradient; adapters have one.
    pub fn products_per_row(&self) -> [f64; 3] {
        let shape = &self.own;
        let [h, f] = [shape.hidden_size, shape.intermediate_size].map(|size| size as f64);
        let [a, k] = [shape.query_width(), shape.key_value_width()].map(|size| size as f64);
        let own = 2.0 * (2.0 * h * a + 2.0 * h * k + 3.0 * h * f);
        let adapters = self.experiment.lora.as_ref().map_or(0.0, |lora| {
            let elements = |target: &Target| target.sizes(shape).iter().sum::<u64>();
            2.0 * (lora.rank as u64 * lora.targets.iter().map(elements).sum::<u64>()) as f64
        });
        let weight_gradients = if self.experiment.lora.is_some() { 0.0 } else { own };
        let again = match self.memory.recompute {
            Recompute::None => 0.0,
            Recompute::Layer | Recompute::Auto => 2.0 * (h * a + 2.0 * h * k + 2.0 * h * f),
        };
        let head = if self.counts().head { 6.0 } else { 4.0 };
        [
            own + adapters,
            own + weight_gradients + 2.0 * adapters + again,
            head * h * self.own_vocabulary() as f64,
        ]
    }

    /// Elements of the trained parameters that every tensor-parallel rank holds whole.
    pub(crate) fn replicated(&self) -> u64 {
        let ranks = self.experiment.mesh.tensor;
        // The vocabulary is sharded, if not always evenly: none of it is replicated.
        let shape = Shape { vocab_size: Some(0), ..self.shape.clone() };
        let of = |ranks| self.counts_of(&shape.part_of(ranks)).trained;
        (ranks as u64 * of(ranks) - of(1)) / (ranks as u64 - 1)
    }

    /// Bytes of all gradients while they are summed.
    pub fn gradient_bytes(&self) -> u64 {
        self.gradient(self.counts().trained)
    }
}
