//! Layer groups: layers with one mask, one strategy and one backward route.

use annulus_architecture::Shape;
use annulus_experiment::{Experiment, SLIDING, mask_of, numbers};
use annulus_sequence::{Mask, Route, Rule, Strategy};
use annulus_text::plural;
use annulus_yaml::Problem;

use crate::RouteChoice;

/// Layers with the same mask, and how their attention is split.
#[derive(Clone, Debug)]
pub struct LayerGroup {
    /// Indices of the group's layers, ascending.
    pub layers: Vec<usize>,
    /// The mask: which keys a query sees.
    pub mask: Mask,
    /// How the group's attention is split over the ranks of a sequence.
    pub strategy: Strategy,
    /// The backward route: what travels backward, and why. [`crate::Plan::experiment`] has the same.
    pub route: RouteChoice,
    /// Visible (query, key) pairs of one sequence, per head and layer, on the slowest rank of every hop, summed over hops: what a forward
    /// pass takes when ranks wait for each other.
    pub slowest_pairs: u64,
    /// The backward route as the experiment's file has it; `None`: left open.
    pub(crate) written: Option<Route>,
    /// Keys that a query sees, where this is the group of the key `sliding`.
    window: Option<usize>,
}

impl LayerGroup {
    /// Whether this is the group of layers with a sliding window.
    pub(crate) fn slides(&self) -> bool {
        self.window.is_some()
    }

    /// The section of the file that says how the group's attention is split.
    pub(crate) fn section(&self) -> &'static str {
        if self.slides() { SLIDING } else { "attention" }
    }

    /// The group's layers in words, `layers 0-2, 4`, and the size of their sliding window.
    pub fn title(&self) -> String {
        let noun = plural("layer", self.layers.len());
        let window =
            self.window.map_or_else(String::new, |window| format!(", sliding over {window}"));
        format!("{noun} {}{window}", numbers(&self.layers))
    }
}

/// The key that names the layers with a window of their own.
const LAYERS: &str = "attention.sliding.layers";

/// The layer groups of a model, those without a sliding window first. Their backward routes are still unknown.
///
/// # Errors
/// When `sliding` names layers that the model does not have, or all of them.
pub(crate) fn groups(experiment: &Experiment, shape: &Shape) -> Result<Vec<LayerGroup>, Problem> {
    let attention = &experiment.attention;
    let all = 0..shape.num_hidden_layers;
    let of_all = |layers| LayerGroup {
        layers,
        mask: mask_of(&attention.masking, attention.masking.near()),
        strategy: attention.strategy,
        route: RouteChoice::default(),
        slowest_pairs: 0,
        written: attention.backward,
        window: None,
    };
    let Some(sliding) = &attention.sliding else { return Ok(vec![of_all(all.collect())]) };
    let slides = |layer: &usize| sliding.layers.iter().any(|range| range.contains(layer));
    let (slide, others): (Vec<usize>, Vec<usize>) = all.clone().partition(slides);
    let problem =
        |message: String, hint: String| Err(experiment.places.problem(LAYERS, message).hint(hint));
    let last = sliding.layers.last().map_or(0, |range| range.end - 1);
    if last >= all.end {
        let has = format!("layers 0 to {}", all.end - 1);
        let message = format!("`{LAYERS}` names layer {last}, but the model has {has}");
        return problem(message, format!("name {has}"));
    }
    if others.is_empty() {
        let message = format!("`{LAYERS}` names all {} layers of the model", all.end);
        let hint = format!("set `attention.window: {}`, and remove `sliding`", sliding.window);
        return problem(message, hint);
    }
    let window = Some(sliding.window);
    let sliding = LayerGroup {
        mask: mask_of(&attention.masking, window.map(Rule::Window)),
        strategy: sliding.strategy,
        written: sliding.backward,
        window,
        ..of_all(slide)
    };
    Ok(vec![of_all(others), sliding])
}
