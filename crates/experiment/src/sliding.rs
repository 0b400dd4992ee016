//! The section `attention.sliding`: layers with a sliding window, and the rules for them.
//!
//! What is fastest for a whole mask is not fastest for a window, so every layer group has its own mask, strategy and backward route.
//! Positions are sharded once, since all layers share the residual stream.

use std::ops::Range;

use annulus_architecture::{LayerType, Shape};
use annulus_sequence::{Layout, Route, Strategy};
use annulus_yaml::{Problem, Problems};

use crate::{Attention, Experiment, MaskKind, Masking, Sliding};

/// The path of the section `attention.sliding`.
pub const SECTION: &str = "attention.sliding";

impl Attention {
    /// The written backward route of the layers with a sliding window, or of the others.
    pub fn backward_of(&mut self, slides: bool) -> &mut Option<Route> {
        match &mut self.sliding {
            Some(sliding) if slides => &mut sliding.backward,
            _ => &mut self.backward,
        }
    }
}

/// Writes out the sliding windows of the model's own layers, as if the experiment had them; one that has them is not changed.
///
/// # Errors
/// When the experiment contradicts the model.
pub(crate) fn with_windows(
    mut experiment: Experiment,
    shape: &Shape,
) -> Result<Experiment, Problems> {
    let mut windows = shape.windows(experiment.data.tokens);
    let others = windows.remove(&None).is_some();
    let Some((Some(window), layers)) = windows.pop_first() else { return Ok(experiment) };
    let attention = &mut experiment.attention;
    let own = Sliding {
        layers: ranges(&layers),
        window,
        strategy: attention.strategy,
        automatic: attention.automatic,
        backward: attention.backward,
    };
    let same = |written: &Sliding| {
        written.window == window && written.layers.iter().cloned().flatten().eq(layers.clone())
    };
    let wrong = match (&attention.sliding, attention.masking.window) {
        (None, None) if others => {
            attention.sliding = Some(own);
            None
        }
        (None, None) => {
            attention.masking.window = Some(window);
            None
        }
        (Some(written), _) if !(others && same(written)) => Some(SECTION),
        (_, Some(written)) if others || written != window => Some("attention.window"),
        _ => None,
    };
    let Some(key) = wrong else { return Ok(experiment) };
    let noun =
        if others { format!("layers {} of", numbers(&layers)) } else { "all layers of".into() };
    let message = format!("`{key}` says otherwise, but {noun} the model slide over {window} keys");
    Err(experiment.places.problem(key, message).hint("remove it").into())
}

/// `shape` with the windows that the experiment gives its layers, where its family's config.json can express them: whoever loads the
/// weights must attend as they were trained.
pub(crate) fn shape_with_windows(mut shape: Shape, attention: &Attention) -> Shape {
    let Some((window, slides)) = attention.windowed(shape.num_hidden_layers) else { return shape };
    // A window of the model's own that is longer than the sequences has no effect.
    let says = attention.special_masks().is_empty() && shape.model_type.can_slide(&slides);
    if says && !has_windows(&shape, window, &slides) {
        shape.sliding_window = Some(window);
        let kind = |slides| if slides { LayerType::Sliding } else { LayerType::Full };
        shape.layer_types = slides.into_iter().map(kind).collect();
    }
    shape
}

/// Whether a config.json of `shape` gives exactly the layers of `slides` this window.
fn has_windows(shape: &Shape, window: usize, slides: &[bool]) -> bool {
    let mut layers = slides.iter().enumerate();
    layers.all(|(layer, slides)| shape.window_of(layer) == slides.then_some(window))
}

impl Attention {
    /// The window, and which of `layers` have it; `None`: no window.
    fn windowed(&self, layers: usize) -> Option<(usize, Vec<bool>)> {
        match (&self.sliding, self.masking.window) {
            (Some(of), None) => {
                let slides = |layer| of.layers.iter().any(|range| range.contains(&layer));
                Some((of.window, (0..layers).map(slides).collect()))
            }
            (None, Some(window)) => Some((window, vec![true; layers])),
            _ => None,
        }
    }

    /// The keys of a mask that no config.json can express: config.json is always causal, and documents belong to the data.
    fn special_masks(&self) -> Vec<&'static str> {
        let Masking { mask, prefix, dilation, pattern, sinks, global, .. } = &self.masking;
        let keys = [
            (*mask != MaskKind::Causal, "attention.mask"),
            (prefix.is_some(), "attention.prefix"),
            (dilation.is_some(), "attention.dilation"),
            (pattern.is_some(), "attention.pattern"),
            (sinks.is_some(), "attention.sinks"),
            (global.is_some(), "attention.global"),
        ];
        keys.into_iter().filter(|(is_set, _)| *is_set).map(|(_, key)| key).collect()
    }

    /// The keys of the mask that a config.json of the trained `shape` cannot express.
    pub fn beyond_config(&self, shape: &Shape) -> Vec<&'static str> {
        let key = match (&self.sliding, self.masking.window) {
            (Some(_), _) => Some(SECTION),
            (None, Some(_)) => Some("attention.window"),
            (None, None) => None,
        };
        let windowed = self.windowed(shape.num_hidden_layers);
        let is_said = windowed.is_some_and(|(window, slides)| has_windows(shape, window, &slides));
        self.special_masks().into_iter().chain(key.filter(|_| !is_said)).collect()
    }
}

/// Ascending numbers in short: `0-2, 4`.
pub fn numbers(layers: &[usize]) -> String {
    listed(&ranges(layers))
}

/// Ascending numbers as ranges.
fn ranges(layers: &[usize]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &layer in layers {
        match ranges.last_mut() {
            Some(range) if range.end == layer => range.end += 1,
            _ => ranges.push(layer..layer + 1),
        }
    }
    ranges
}

/// Ranges as one writes them, both ends included.
pub(crate) fn listed(ranges: &[Range<usize>]) -> String {
    let range = |range: &Range<usize>| match range.len() {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

/// Checks the listed layers: ascending, so that none occurs twice, and not empty.
pub(crate) fn layers(experiment: &Experiment) -> Vec<Problem> {
    let Some(Sliding { layers, .. }) = &experiment.attention.sliding else { return Vec::new() };
    let problem = |message: String, hint: &str| {
        vec![experiment.places.problem("attention.sliding.layers", message).hint(hint)]
    };
    if layers.is_empty() {
        return problem(
            "`attention.sliding.layers` names no layer".to_owned(),
            "list some, or remove `sliding`",
        );
    }
    let falls = layers.windows(2).find(|pair| pair[1].start < pair[0].end);
    falls.map_or_else(Vec::new, |pair| {
        let message = format!("layer {} is listed behind layer {}", pair[1].start, pair[0].end - 1);
        problem(message, "list every layer once, from the first to the last")
    })
}

/// Refuses `striped` for layers with a window where the other layers are sharded otherwise.
pub(crate) fn striped(experiment: &Experiment) -> Vec<Problem> {
    let attention = &experiment.attention;
    let Some(sliding) = &attention.sliding else { return Vec::new() };
    let open = attention.automatic && attention.layout.is_none();
    let layout = experiment.layout();
    if open || matches!(layout, Layout::Striped { .. }) {
        return Vec::new();
    }
    let shards =
        |strategy, automatic: bool| matches!(strategy, Strategy::Striped { .. }) && !automatic;
    let problem = |key: &str| {
        let message =
            format!("`striped` shards by stripes, but all layers share one layout: {layout}");
        let hint = "use `ring`, which is the same over any layout, or `attention.layout: striped`";
        experiment.places.problem(key, message).hint(hint)
    };
    let cases = [
        ("attention.strategy", shards(attention.strategy, attention.automatic)),
        ("attention.sliding.strategy", shards(sliding.strategy, sliding.automatic)),
    ];
    cases.into_iter().filter(|(_, shards)| *shards).map(|(key, _)| problem(key)).collect()
}
