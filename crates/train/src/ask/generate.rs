//! Generation of text, token by token, over the ranks that read the prompt.
//!
//! The prompt is read by the plan's strategy, and its KV stay on their ranks. Every rank then computes the same for each new token, except
//! in attention, where each uses its own KV; so all have the same logits, to the bit, and draw the same token without communicating it.

use std::sync::Arc;

use annulus_attention::Cache;
use annulus_comm::{Axis, Label, Reduce};
use annulus_data::Sequence;
use annulus_model::{Attentions, Keep, Rotaries, Shard, Weights};
use annulus_ops::{IGNORED, Key, check_tokens, uniform};
use annulus_sequence::{Positions, Run};
use candle_core::{Device, Tensor};

use crate::ask::judge::DeviceWeights;
use crate::setup::shared::once;
use crate::step::finite::finite;
use crate::step::measure::alive::calling;
use crate::step::rank::Rank;
use crate::step::state::gathered::WeightSource;
use crate::{Result, Setup, TrainError};

/// How many equally likely values a draw has.
const STEPS: u64 = 1 << 53;

/// How the next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by, finite and not negative; 0: the most likely token is always drawn.
    pub temperature: f64,
    /// Draw only from so many of the most likely tokens, at least 1.
    pub top_k: Option<usize>,
    /// Draw only from the most likely tokens that together have this probability, from 0 (the most likely token alone) to 1.
    pub top_p: f64,
    /// The seed: a draw is a function of it and of the position.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 }
    }
}

/// What is to be generated: length, end tokens, sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// The most tokens that are generated.
    pub tokens: usize,
    /// Tokens that end the text; they are returned, too.
    pub ends: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
}

/// Called by rank 0 (in the first process) after each token, with all tokens so far. It may take long: the other ranks wait.
pub type OnToken<'a> = &'a (dyn Fn(&[u32]) + Sync);

/// Generates what follows `prompt`, whose length must be the tokens of `setup`; `weights` are those of [`Setup::placed`].
///
/// # Errors
/// An empty prompt or one of another length, settings that [`Sampling`] rules out, tensor-parallel ranks, weights that were placed for
/// another setup, ids outside the vocabulary, failures of the ranks; [`TrainError::NotANumber`] for logits that are not finite.
pub fn generate(
    setup: &Setup,
    weights: &DeviceWeights,
    prompt: &[u32],
    wanted: &GenerateRequest,
    on_token: OnToken<'_>,
) -> Result<Vec<u32>> {
    let checked = check_prompt(setup, prompt).and_then(|()| wanted.sampling.check());
    checked.map_err(|error| once(&setup.processes, error))?;
    let processors = setup.processors.shared_by(setup.sequence * setup.tensor);
    let own = Setup { data: 1, micro_batch: 1, block: None, ..setup.clone() };
    let setup = Arc::new(own.on(processors));
    weights.check(&setup).map_err(|error| once(&setup.processes, error))?;
    setup.run(|rank| rank.go_on(weights.of(&rank), prompt, wanted, on_token))
}

/// Checks that there is a prompt, as long as the setup says.
fn check_prompt(setup: &Setup, prompt: &[u32]) -> Result<()> {
    let hint = match prompt.len() {
        0 => "give a text to continue, with `--prompt` or `--file`",
        found if found == setup.tokens => return Ok(()),
        _ => "make a setup for sequences as long as the prompt",
    };
    let message = match prompt.len() {
        0 => "the prompt is empty".to_owned(),
        found => format!("a prompt of {found} tokens, expected {}", setup.tokens),
    };
    Err(TrainError::configuration(message, hint))
}

impl Rank {
    fn go_on(
        &self,
        weights: &Weights,
        prompt: &[u32],
        wanted: &GenerateRequest,
        on_token: OnToken<'_>,
    ) -> Result<Vec<u32>> {
        // All ranks draw the same token.
        let tell = |generated: &[u32]| {
            if self.comm.rank() == 0 {
                calling(self.comm.as_ref(), || on_token(generated));
            }
        };
        if wanted.tokens == 0 {
            return Ok(Vec::new());
        }
        let cache = Arc::new(Cache::default());
        let mut generated = vec![self.read(weights, prompt, &cache, wanted)?];
        tell(&generated);
        while let (Some(&last), true) = (generated.last(), generated.len() < wanted.tokens) {
            if wanted.ends.contains(&last) {
                break;
            }
            let position = prompt.len() + generated.len() - 1;
            let attention = self.attention.map(|_, one| Ok(one.decoding_at(&cache, position)))?;
            let shard = self.one(last, position, attention)?;
            let x_bsd = self.before_loss(&mut WeightSource::Whole(weights), &shard)?;
            let logits = self.row(&x_bsd, weights, &shard)?;
            generated.push(wanted.sampling.draw(&logits, position)?);
            tell(&generated);
        }
        Ok(generated)
    }

    /// Reads the prompt; returns the token that follows it, drawn by the rank with its last position.
    fn read(
        &self,
        weights: &Weights,
        prompt: &[u32],
        cache: &Arc<Cache>,
        wanted: &GenerateRequest,
    ) -> Result<u32> {
        let targets = vec![IGNORED; prompt.len()];
        let sequence = Sequence { inputs: prompt.to_vec(), targets, documents: Vec::new() };
        let mut shard = self.micro_batch_of(0, &[sequence])?.shard;
        shard.attention = shard.attention.map(|_, one| Ok(one.with_prefill_cache(cache)))?;
        let x_bsd = self.before_loss(&mut WeightSource::Whole(weights), &shard)?;
        let last = prompt.len() - 1;
        let row = self.attention.positions().iter().position(|position| position == last);
        let mut next = 0.0;
        if let Some(row) = row {
            let logits = self.row(&x_bsd.narrow(1, row, 1)?, weights, &shard)?;
            next = f64::from(wanted.sampling.draw(&logits, last)?);
        }
        let label = Label { step: 0, pass: "drawn", hop: 0, layer: 0 };
        let drawn = Tensor::new(&[next], &Device::Cpu)?;
        let group = self.mesh.group(&[Axis::Sequence]);
        let all: Vec<f64> = group.all_reduce(label, &drawn, Reduce::Sum)?.to_vec1()?;
        Ok(all[0] as u32)
    }

    /// The shard of a single token at a position, the same on every rank.
    fn one(&self, token: u32, position: usize, attention: Attentions) -> Result<Shard> {
        check_tokens(&[token], self.setup.config.vocab_size)?;
        let device = self.backend.device();
        let positions = Positions::new(vec![Run::contiguous(position, 1)]);
        let (shape, frequencies) = (&self.setup.config.shape, &self.setup.frequencies);
        Ok(Shard {
            inputs: Tensor::from_vec(vec![token], (1, 1), &device)?,
            targets: Tensor::from_vec(vec![IGNORED], (1, 1), &device)?,
            attention,
            tensor: self.tensor.clone(),
            rotary: Rotaries::new(shape, frequencies, &positions),
            backend: self.backend.clone(),
            step: 0,
            keep: Keep::Nothing,
            dropout: None,
        })
    }

    /// The logits of one row, over the vocabulary.
    fn row(&self, x_bsd: &Tensor, weights: &Weights, shard: &Shard) -> Result<Vec<f32>> {
        let logits = self.model.logits(x_bsd, weights, shard)?;
        Ok(logits.flatten_all()?.to_device(&Device::Cpu)?.to_vec1()?)
    }
}

impl Sampling {
    /// Refuses settings by which no token, or always the same, would be drawn unasked.
    fn check(&self) -> Result<()> {
        let Sampling { temperature, top_k, top_p, .. } = *self;
        let message = if !temperature.is_finite() || temperature < 0.0 {
            format!("a temperature of {temperature}, expected a number of at least 0")
        } else if top_k == Some(0) {
            "`top_k` of 0 tokens, expected at least 1".to_owned()
        } else if !(0.0..=1.0).contains(&top_p) {
            format!("`top_p` of {top_p}, expected a number from 0 to 1")
        } else {
            return Ok(());
        };
        let hint = "`Sampling::default()` always draws the most likely token";
        Err(TrainError::configuration(message, hint))
    }

    /// Draws the token that follows `position`.
    fn draw(&self, logits: &[f32], position: usize) -> Result<u32> {
        for &logit in logits {
            finite(logit.into(), || format!("a logit after position {position}"))?;
        }
        let ranked = self.ranked(logits);
        if self.temperature == 0.0 {
            return Ok(ranked[0] as u32);
        }
        let most = f64::from(logits[ranked[0]]);
        let weigh = |&id: &usize| ((f64::from(logits[id]) - most) / self.temperature).exp();
        let mut weights: Vec<f64> = ranked.iter().map(weigh).collect();
        let all: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let enough = weights.iter().position(|weight| {
            sum += weight;
            sum >= self.top_p * all
        });
        weights.truncate(enough.map_or(weights.len(), |last| last + 1));
        let key = Key { seed: self.seed, purpose: "generate", name: "" };
        let share = uniform(key, position as u64, STEPS) as f64 / STEPS as f64;
        let mut left = share * weights.iter().sum::<f64>();
        for (id, weight) in ranked.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return Ok(*id as u32);
            }
        }
        Ok(ranked[weights.len() - 1] as u32)
    }

    /// The ids that may be drawn before `top_p` is applied, the most likely first; of equal logits the smallest id first. Only these are
    /// sorted, not the whole vocabulary.
    fn ranked(&self, logits: &[f32]) -> Vec<usize> {
        let order = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
        let most =
            if self.temperature == 0.0 { 1 } else { self.top_k.unwrap_or(logits.len()).max(1) };
        let mut ids: Vec<usize> = (0..logits.len()).collect();
        if most < ids.len() {
            ids.select_nth_unstable_by(most - 1, order);
            ids.truncate(most);
        }
        ids.sort_unstable_by(order);
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule: all ids sorted, then cut.
    #[test]
    fn ids_are_ranked_as_if_all_were_sorted() {
        let value = |id: usize| (id * 7919 % 13) as f32 - 6.0;
        let mut logits: Vec<f32> = (0..200).map(value).collect();
        (logits[40], logits[50]) = (0.0, -0.0);
        for top_k in [None, Some(1), Some(2), Some(17), Some(199), Some(200), Some(300)] {
            for temperature in [0.0, 1.0] {
                let mut sorted: Vec<usize> = (0..logits.len()).collect();
                sorted.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
                sorted.truncate(if temperature == 0.0 { 1 } else { top_k.unwrap_or(200) });
                let sampling = Sampling { temperature, top_k, ..Sampling::default() };
                assert_eq!(sampling.ranked(&logits), sorted, "{top_k:?} {temperature}");
            }
        }
    }

    fn drawn(sampling: Sampling) -> Vec<usize> {
        let logits = [0.0, 3.0_f32.ln(), 4.0_f32.ln(), f32::MIN];
        let mut counts = vec![0; 4];
        for position in 0..8000 {
            counts[sampling.draw(&logits, position).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = Sampling::default().draw(&[0.0, bad], 7).unwrap_err();
            assert_eq!(error.exit_code(), 11);
            assert!(error.to_string().contains("a logit after position 7"), "{error}");
        }
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let sampled = Sampling { temperature: 1.0, ..Sampling::default() };
        // Probabilities 1 : 3 : 4, then their squares, then only the first ones.
        let near = |found: Vec<usize>, wanted: [usize; 4]| {
            found.iter().zip(wanted).all(|(found, wanted)| found.abs_diff(wanted) < 160)
        };
        assert!(near(drawn(sampled), [1000, 3000, 4000, 0]));
        assert!(near(drawn(Sampling { temperature: 0.5, ..sampled }), [308, 2769, 4923, 0]));
        assert!(near(drawn(Sampling { top_k: Some(2), ..sampled }), [0, 3429, 4571, 0]));
        assert!(near(drawn(Sampling { top_p: 0.8, ..sampled }), [0, 3429, 4571, 0]));
        assert_eq!(drawn(Sampling { top_p: 0.4, ..sampled }), [0, 0, 8000, 0]);
        assert_eq!(drawn(Sampling::default()), [0, 0, 8000, 0]);
        assert_eq!(drawn(sampled), drawn(sampled));
        assert_ne!(drawn(sampled), drawn(Sampling { seed: 1, ..sampled }));
    }
}
