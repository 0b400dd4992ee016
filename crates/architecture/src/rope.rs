//! The rotary embedding of a model: how fast every pair of elements turns, and the factor
//! of cosines and sines. Every way to stretch it has its formula here, with the paper it is from.
//!
//! With D elements of a head, i below D / 2 a pair, b the base and s the factor, the frequency of
//! [`Scaling::Default`] is `b ^ (-2 i / D)` radians per position (Su et al., arXiv 2104.09864).
//! A wavelength is the positions of one turn, `2 pi / frequency`. All is computed in f64 and rounded
//! once.

mod parameters;
mod read;

use std::f64::consts::TAU;

pub use parameters::{Parameters, rope_keys_of};
pub(crate) use read::RopeKeysAsWritten;

/// The words of `rope_type`, the default first.
pub(crate) const WORDS: &[&str] = &["default", "linear", "dynamic", "yarn", "llama3", "longrope"];

/// The rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `rope_theta`: the base of the frequencies. A larger one is the adjusted base frequency of Xiong
    /// et al., arXiv 2309.16039.
    pub theta: f64,
    /// How the frequencies are scaled.
    pub scaling: Scaling,
}

/// The value of `rope_type`, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Frequencies as trained.
    Default,
    /// Position interpolation (Chen et al., arXiv 2306.15595): positions are divided by `factor`.
    Linear {
        /// The key `factor`.
        factor: f64,
    },
    /// The base grows with the sequence, once that is longer than `original` (Peng et al., arXiv
    /// 2309.00071, 3.3; found by bloc97 and emozilla).
    Dynamic {
        /// The key `factor`; with 1 the base grows as in the paper.
        factor: f64,
        /// The key `max_position_embeddings`.
        original: usize,
    },
    /// YaRN (Peng et al., arXiv 2309.00071, 3.4).
    Yarn(Yarn),
    /// As in Llama 3.1 (Grattafiori et al., arXiv 2407.21783): wavelengths that are short beside
    /// `original` stay, long ones are stretched by `factor`, and between them it is a mixture.
    Llama3 {
        /// The key `factor`.
        factor: f64,
        /// `low_freq_factor`: wavelengths of more than `original` divided by it are long.
        low: f64,
        /// `high_freq_factor`: wavelengths of less than `original` divided by it are short.
        high: f64,
        /// The key `original_max_position_embeddings`.
        original: usize,
    },
    /// LongRoPE (Ding et al., arXiv 2402.13753): a factor for every pair, found by search, one list
    /// for sequences up to `original` and another for longer ones.
    LongRope {
        /// `short_factor`, `D / 2` of them.
        short: Vec<f64>,
        /// `long_factor`, `D / 2` of them.
        long: Vec<f64>,
        /// `factor`; default `max_position_embeddings / original`
        factor: f64,
        /// `attention_factor`; default `sqrt(1 + ln factor / ln original)`
        attention_factor: f64,
        /// The key `original_max_position_embeddings`.
        original: usize,
    },
}

/// Parameters of `rope_type: yarn`.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// `factor`; default `max_position_embeddings / original`
    pub factor: f64,
    /// The key `original_max_position_embeddings`.
    pub original: usize,
    /// `beta_fast`: a pair that turns at least so often within `original` positions stays; default 32
    pub beta_fast: f64,
    /// `beta_slow`: one that turns at most so often is stretched by `factor`; default 1
    pub beta_slow: f64,
    /// `truncate`: whether the first and last pair between the two are whole numbers; default true
    pub truncate: bool,
    /// `attention_factor`; default: from `factor` and the next two
    pub attention_factor: Option<f64>,
    /// The key `mscale`.
    pub mscale: Option<f64>,
    /// The key `mscale_all_dim`.
    pub mscale_all_dim: Option<f64>,
}

/// The frequencies of a rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Frequencies {
    /// Radians per position, `head_dim / 2` of them: `inv_freq`.
    pub inverse: Vec<f32>,
    /// The factor of cosines and sines: the attention factor.
    pub factor: f64,
}

impl Rope {
    /// The default base of the frequencies.
    pub const THETA: f64 = 10_000.0;

    /// The frequencies of heads of `head_dim` elements, in sequences of `tokens`.
    pub fn frequencies(&self, head_dim: usize, tokens: usize) -> Frequencies {
        let width = head_dim as f64;
        let plain = |theta: f64| powers(theta, head_dim);
        let (frequencies, factor) = match &self.scaling {
            Scaling::Default => (plain(self.theta), 1.0),
            Scaling::Linear { factor } => {
                (plain(self.theta).into_iter().map(|f| f / factor).collect(), 1.0)
            }
            Scaling::Dynamic { factor, original } => {
                let stretch = tokens.max(*original) as f64 / *original as f64;
                let by = factor * stretch - (factor - 1.0);
                (plain(ntk_theta(self.theta, by, width)), 1.0)
            }
            Scaling::Yarn(yarn) => {
                (yarn.frequencies(self.theta, head_dim), yarn.attention_factor())
            }
            Scaling::Llama3 { .. } => {
                let mixed = |frequency| self.scaling.mixed(frequency);
                (plain(self.theta).into_iter().map(mixed).collect(), 1.0)
            }
            Scaling::LongRope { short, long, original, attention_factor, .. } => {
                let factors = if tokens > *original { long } else { short };
                let divided = std::iter::zip(plain(self.theta), factors).map(|(f, by)| f / by);
                (divided.collect(), *attention_factor)
            }
        };
        Frequencies { inverse: frequencies.into_iter().map(|f| f as f32).collect(), factor }
    }

    /// The length that the model was trained for before its frequencies were scaled, if known.
    pub fn original(&self) -> Option<usize> {
        match &self.scaling {
            Scaling::Default | Scaling::Linear { .. } => None,
            Scaling::Dynamic { original, .. }
            | Scaling::Llama3 { original, .. }
            | Scaling::LongRope { original, .. } => Some(*original),
            Scaling::Yarn(yarn) => Some(yarn.original),
        }
    }
}

impl Scaling {
    /// The word of `rope_type`.
    pub fn word(&self) -> &'static str {
        match self {
            Scaling::Default => "default",
            Scaling::Linear { .. } => "linear",
            Scaling::Dynamic { .. } => "dynamic",
            Scaling::Yarn(_) => "yarn",
            Scaling::Llama3 { .. } => "llama3",
            Scaling::LongRope { .. } => "longrope",
        }
    }

    /// A frequency under [`Scaling::Llama3`]: unchanged for short wavelengths, divided for long ones, and interpolated between by how often
    /// it turns within the original length.
    fn mixed(&self, frequency: f64) -> f64 {
        let Scaling::Llama3 { factor, low, high, original } = self else { return frequency };
        let turns = *original as f64 * frequency / TAU;
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        frequency * kept + frequency / factor * (1.0 - kept)
    }
}

/// `theta ^ (-2 i / D)` for `i` below D / 2.
fn powers(theta: f64, head_dim: usize) -> Vec<f64> {
    let exponent = |i: usize| -2.0 * i as f64 / head_dim as f64;
    (0..head_dim / 2).map(|i| theta.powf(exponent(i))).collect()
}

/// NTK-aware (bloc97; Peng et al., arXiv 2309.00071, 3.1): the base with which the slowest pair turns
/// `by` times slower, and the fastest as before.
pub fn ntk_theta(theta: f64, by: f64, width: f64) -> f64 {
    theta * by.powf(width / (width - 2.0))
}

impl Yarn {
    /// The frequency of every pair: its own, the one divided by `factor`, or between the two a mixture
    /// that is linear in the pair's number (NTK-by-parts).
    fn frequencies(&self, theta: f64, head_dim: usize) -> Vec<f64> {
        let width = head_dim as f64;
        // The pair, as a real number, that turns this often within the original length.
        let pair =
            |turns: f64| width * (self.original as f64 / (turns * TAU)).ln() / (2.0 * theta.ln());
        let (mut first, mut last) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            (first, last) = (first.floor(), last.ceil());
        }
        (first, last) = (first.max(0.0), last.min(width - 1.0));
        if last == first {
            // Makes a step instead of a ramp.
            last += 0.001;
        }
        let mixed = |(i, frequency): (usize, f64)| {
            let stretched = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
            frequency / self.factor * stretched + frequency * (1.0 - stretched)
        };
        powers(theta, head_dim).into_iter().enumerate().map(mixed).collect()
    }

    /// The factor of cosines and sines: a temperature of the softmax that is `0.1 ln factor +
    /// 1` squared; with `mscale` and `mscale_all_dim` the ratio of two such (DeepSeek-V2, arXiv
    /// 2405.04434).
    fn attention_factor(&self) -> f64 {
        let grown = |scale: f64| {
            if self.factor <= 1.0 { 1.0 } else { 0.1 * scale * self.factor.ln() + 1.0 }
        };
        let given = |scale: Option<f64>| scale.filter(|scale| *scale != 0.0);
        self.attention_factor.unwrap_or_else(|| {
            match given(self.mscale).zip(given(self.mscale_all_dim)) {
                Some((all, dims)) => grown(all) / grown(dims),
                None => grown(1.0),
            }
        })
    }
}

/// `sqrt(1 + ln factor / ln original)`: what LongRoPE multiplies cosines and sines by.
pub(crate) fn long_factor(factor: f64, original: usize) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() }
}
