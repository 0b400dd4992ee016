//! Warnings: what an experiment asks for that is probably not meant. It runs all the same.

use annulus_experiment::{Every, Experiment, Family, MaskKind, Schedule, Shape, TextSource};

use crate::Plan;

/// The warning of documents that are packed whole, but see those before them.
pub const PACKED_TOGETHER: &str = "tokens of a packed sequence see the documents before their own: `attention.documents: data` hides them";

/// Warns of a mask of `experiment` that the config.json of its model, which has this `shape`, cannot express; `None`: it says how every
/// layer attends.
pub fn mask_beyond_config(experiment: &Experiment, shape: &Shape) -> Option<String> {
    let keys = experiment.attention.beyond_config(shape);
    if keys.is_empty() {
        return None;
    }
    let slides = (0..shape.num_hidden_layers).any(|layer| shape.window_of(layer).is_some());
    let stored = shape.sliding_window.filter(|_| slides);
    let attend = stored.map_or_else(
        || "attend to all earlier tokens".to_owned(),
        |window| format!("attend by its `sliding_window` of {window} alone"),
    );
    let (family, keys) = (shape.model_type.word(), keys.join("`, `"));
    Some(format!(
        "the config.json of a `{family}` cannot store `{keys}`: other programs that load this checkpoint, and `annulus evaluate` of an \
         export, {attend}"
    ))
}

impl Plan {
    /// All warnings that follow from the keys of the experiment.
    pub(crate) fn warnings_of_keys(&self) -> Vec<String> {
        let all = [
            self.idle_ranks(),
            self.idle_window(),
            self.idle_exceptions(),
            mask_beyond_config(&self.experiment, &self.shape),
            self.shown_targets(),
            self.learned_padding(),
            self.packed_together(),
            self.idle_extension(),
            self.only_warm_up(),
            self.unsaved_best(),
            self.beyond_transformers(),
        ];
        all.into_iter().flatten().collect()
    }

    /// Warns of ranks for which a sequence has no tokens.
    fn idle_ranks(&self) -> Option<String> {
        let Experiment { mesh, data, .. } = &self.experiment;
        let idle = self.ranks.iter().filter(|rank| rank.positions.tokens() == 0).count();
        (idle > 0 && mesh.sequence > data.tokens).then(|| {
            let (ranks, most) = (self.ranks.len(), data.tokens);
            format!(
                "{idle} of {ranks} ranks hold no tokens: lower `mesh.sequence` to at most {most}"
            )
        })
    }

    /// Warns of a mask that shows queries their own targets.
    fn shown_targets(&self) -> Option<String> {
        let masking = &self.experiment.attention.masking;
        match (masking.mask, masking.prefix) {
            (MaskKind::Full, _) => Some(
                "`attention.mask: full` shows every query the next token, its target, and all count in the loss".to_owned(),
            ),
            (MaskKind::Causal, Some(prefix)) => Some(format!(
                "queries of the first {prefix} tokens see their targets (`attention.prefix`), and these count in the loss"
            )),
            _ => None,
        }
    }

    /// Warns of padding that counts as a target, or that no sequence has.
    fn learned_padding(&self) -> Option<String> {
        let padding = self.experiment.attention.masking.padding?;
        let tokens = self.experiment.data.tokens;
        if padding >= tokens {
            return Some(format!(
                "`attention.padding` of {padding} hides nothing in sequences of {tokens} tokens"
            ));
        }
        Some(format!(
            "tokens from position {padding} on are hidden as keys (`attention.padding`), and still count in the loss"
        ))
    }

    /// Warns of documents that are packed whole, but see those before them.
    fn packed_together(&self) -> Option<String> {
        let data = &self.experiment.data;
        let is_whole = |source: &TextSource| source.pack(data).is_whole();
        let sees = self.experiment.attention.masking.documents.is_none();
        (sees && data.path.iter().any(is_whole)).then(|| PACKED_TOGETHER.to_owned())
    }

    /// Warns of a window that is no shorter than the sequences.
    fn idle_window(&self) -> Option<String> {
        let (attention, tokens) = (&self.experiment.attention, self.experiment.data.tokens);
        let sliding = attention.sliding.as_ref().map(|sliding| sliding.window);
        let windows =
            [("attention.window", attention.masking.window), ("attention.sliding.window", sliding)];
        windows.into_iter().find_map(|(key, window)| {
            let window = window.filter(|window| *window >= tokens)?;
            Some(format!("`{key}` of {window} hides nothing in sequences of {tokens} tokens"))
        })
    }

    /// Warns of keys that show what a window hides, where the only window is the model's own and hides nothing.
    fn idle_exceptions(&self) -> Option<String> {
        let attention = &self.experiment.attention;
        let masking = &attention.masking;
        if masking.window.is_some() || masking.pattern.is_some() || attention.sliding.is_some() {
            return None;
        }
        let keys = [("sinks", masking.sinks.is_some()), ("global", masking.global.is_some())];
        let (key, _) = keys.into_iter().find(|(_, is_set)| *is_set)?;
        let tokens = self.experiment.data.tokens;
        Some(format!(
            "`attention.{key}` has no effect: the model's own window hides nothing in sequences of {tokens} tokens"
        ))
    }

    /// Warns of a model that `transformers` refuses to load (5.0 and later).
    fn beyond_transformers(&self) -> Option<String> {
        let (hidden, heads) = (self.shape.hidden_size, self.shape.num_attention_heads);
        let splits = hidden.is_multiple_of(heads) || self.shape.model_type != Family::Llama;
        (!splits).then(|| {
            format!(
                "transformers 5 loads no `llama` with {hidden} of `hidden_size` over {heads} heads, also with `head_dim`: it would refuse checkpoints"
            )
        })
    }

    /// Warns of a learning rate that only rises.
    fn only_warm_up(&self) -> Option<String> {
        let Schedule { steps, ref curve, .. } = self.experiment.schedule;
        (curve.warmup > 0 && curve.warmup == steps).then(|| {
            format!("`schedule.warmup` takes all {steps} steps: the learning rate only rises")
        })
    }

    /// Warns where evaluated steps are not saved, and so cannot become the best checkpoint. Checkpoints that are rarer than evaluations, and
    /// all evaluated, are meant.
    fn unsaved_best(&self) -> Option<String> {
        let Every { evaluate, checkpoint, checkpoint_after, .. } = self.experiment.every;
        let (start, last) =
            (self.experiment.phase_start().steps.start, self.experiment.last_step());
        // Whether a multiple of a number of steps comes before the last.
        let comes = |steps: u64| steps > 0 && last.saturating_sub(1) / steps > start / steps;
        let both = common_multiple(evaluate, checkpoint);
        let is_meant = both == evaluate || (both == checkpoint && comes(both));
        if !self.experiment.keep_best || !comes(evaluate) || is_meant {
            return None;
        }
        let compared = [
            comes(both).then(|| format!("multiples of {both}")),
            Some("the last step".to_owned()),
            checkpoint_after
                .map(|_| "evaluated ones that `every.checkpoint_after` saves".to_owned()),
        ];
        let compared: Vec<String> = compared.into_iter().flatten().collect();
        Some(format!(
            "only steps that are evaluated and saved can become the best checkpoint (`keep_best`): {}; set `every.checkpoint` ({checkpoint}) \
             to a multiple of `every.evaluate`, such as {evaluate}",
            compared.join(", ")
        ))
    }

    /// Warns of an extension beyond the sequences: frequencies are scaled for lengths that are not learned.
    fn idle_extension(&self) -> Option<String> {
        let (extension, tokens) = (self.experiment.extend.as_ref()?, self.experiment.data.tokens);
        (extension.tokens > tokens && self.experiment.stages.is_empty()).then(|| {
            format!(
                "`extend.tokens` is {}, but sequences have {tokens} tokens: set `data.tokens` and `extend.tokens` alike",
                extension.tokens
            )
        })
    }
}

/// The least common multiple; 0 of 0.
fn common_multiple(one: u64, other: u64) -> u64 {
    let (mut divisor, mut rest) = (one, other);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    one.checked_div(divisor).unwrap_or(0).saturating_mul(other)
}
