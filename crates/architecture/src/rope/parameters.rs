//! The parameters of a `rope_type`, as optional as in a file, and the scaling that they mean.

use annulus_yaml::Absent::Means;
use annulus_yaml::Interval::{AboveZero, AtLeastZero};
use annulus_yaml::Kind::{Real, Reals, Tokens, Truth};
use annulus_yaml::{Lines, Path, Section, section};
use serde::Serialize;

use crate::MOST_POSITIONS;
use crate::rope::{Rope, Scaling, Yarn, long_factor};

section! {
    /// The keys beside `rope_type`, under their own names.
    #[derive(Clone, Debug, Default, PartialEq, Serialize)]
    pub struct Parameters {
        factor: Option<f64> = Real(AboveZero), Means("new length / old length"), "ratio of the new length to the old";
        original_max_position_embeddings: Option<usize> = Tokens(2, MOST_POSITIONS),
            Means("in `extend` the model's, else max_position_embeddings"), "the length before any scaling";
        attention_factor: Option<f64> = Real(AboveZero),
            Means("in `extend` the model's own, else computed from `factor`"),
            "factor of cosines and sines: yarn, longrope";
        beta_fast: Option<f64> = Real(AboveZero), Means("in `extend` the model's, else 32"),
            "rotations within the original length above which a frequency is kept: yarn";
        beta_slow: Option<f64> = Real(AboveZero), Means("in `extend` the model's, else 1"),
            "rotations below which a frequency is divided by `factor`: yarn";
        mscale: Option<f64> = Real(AtLeastZero), Means("in `extend` the model's, else none"),
            "coefficient of attention_factor: yarn";
        mscale_all_dim: Option<f64> = Real(AtLeastZero), Means("in `extend` the model's, else none"),
            "denominator of attention_factor: yarn";
        truncate: Option<bool> = Truth, Means("in `extend` the model's, else true"),
            "whether the ramp's ends are rounded to whole dimensions: yarn";
        low_freq_factor: Option<f64> = Real(AboveZero),
            Means("in `extend` the model's or 1, else required by llama3"),
            "rotations below which a frequency is divided by `factor`: llama3";
        high_freq_factor: Option<f64> = Real(AboveZero), Means("in `extend` the model's or 4, else required by llama3"),
            "rotations above which a frequency is kept: llama3";
        short_factor: Option<Vec<f64>> = Reals(AboveZero), Means("in `extend` the model's or 1 everywhere, else required by longrope"),
            "divisors of the frequencies up to the original length: longrope";
        long_factor: Option<Vec<f64>> = Reals(AboveZero), Means("required by longrope"),
            "divisors of the frequencies beyond it: longrope";
    }
}

/// The keys that a `rope_type` has beside `rope_theta`.
pub fn rope_keys_of(kind: &str) -> &'static [&'static str] {
    match kind {
        "linear" | "dynamic" => &["factor"],
        "yarn" => &[
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        "llama3" => {
            &["factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"]
        }
        "longrope" => &[
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "short_factor",
            "long_factor",
        ],
        _ => &[],
    }
}

impl Parameters {
    /// These parameters, with those of `other` where they are absent.
    #[must_use]
    pub fn or(self, other: Parameters) -> Parameters {
        let original = self.original_max_position_embeddings;
        Parameters {
            factor: self.factor.or(other.factor),
            original_max_position_embeddings: original.or(other.original_max_position_embeddings),
            attention_factor: self.attention_factor.or(other.attention_factor),
            beta_fast: self.beta_fast.or(other.beta_fast),
            beta_slow: self.beta_slow.or(other.beta_slow),
            mscale: self.mscale.or(other.mscale),
            mscale_all_dim: self.mscale_all_dim.or(other.mscale_all_dim),
            truncate: self.truncate.or(other.truncate),
            low_freq_factor: self.low_freq_factor.or(other.low_freq_factor),
            high_freq_factor: self.high_freq_factor.or(other.high_freq_factor),
            short_factor: self.short_factor.or(other.short_factor),
            long_factor: self.long_factor.or(other.long_factor),
        }
    }

    /// The scaling of `rope_type: kind`, in a model whose `max_position_embeddings` is `longest`.
    ///
    /// # Errors
    /// The key that is missing.
    pub fn scaling(&self, kind: &str, longest: Option<usize>) -> Result<Scaling, &'static str> {
        const LONGEST: &str = "max_position_embeddings";
        const ORIGINAL: &str = "original_max_position_embeddings";
        let original = || self.original_max_position_embeddings.or(longest).ok_or(ORIGINAL);
        Ok(match kind {
            "linear" => Scaling::Linear { factor: self.factor.ok_or("factor")? },
            "dynamic" => Scaling::Dynamic {
                factor: self.factor.ok_or("factor")?,
                original: longest.ok_or(LONGEST)?,
            },
            "yarn" => self.yarn(self.stretch(longest)?, original()?),
            "llama3" => Scaling::Llama3 {
                factor: self.factor.ok_or("factor")?,
                low: self.low_freq_factor.ok_or("low_freq_factor")?,
                high: self.high_freq_factor.ok_or("high_freq_factor")?,
                original: original()?,
            },
            "longrope" => {
                let (factor, original) = (self.stretch(longest)?, original()?);
                let found = || long_factor(factor, original);
                Scaling::LongRope {
                    short: self.short_factor.clone().ok_or("short_factor")?,
                    long: self.long_factor.clone().ok_or("long_factor")?,
                    factor,
                    attention_factor: self.attention_factor.unwrap_or_else(found),
                    original,
                }
            }
            _ => Scaling::Default,
        })
    }

    /// The key `factor`, or else the ratio of the two lengths.
    fn stretch(&self, longest: Option<usize>) -> Result<f64, &'static str> {
        let lengths = self.original_max_position_embeddings.zip(longest);
        let stretched = lengths.map(|(original, longest)| longest as f64 / original as f64);
        self.factor.or(stretched).ok_or("factor")
    }

    fn yarn(&self, factor: f64, original: usize) -> Scaling {
        Scaling::Yarn(Yarn {
            factor,
            original,
            beta_fast: self.beta_fast.unwrap_or(32.0),
            beta_slow: self.beta_slow.unwrap_or(1.0),
            truncate: self.truncate.unwrap_or(true),
            attention_factor: self.attention_factor,
            mscale: self.mscale,
            mscale_all_dim: self.mscale_all_dim,
        })
    }

    /// The names of the keys that are present.
    pub fn written(&self) -> Vec<String> {
        written(self).into_iter().map(|(key, _)| key).collect()
    }
}

/// The keys of a section that are present, with their values.
pub(super) fn written(section: &impl Section) -> Vec<(String, String)> {
    let mut lines = Lines::default();
    section.write(&Path::default(), &mut lines);
    lines.iter().map(|(key, value)| (key, value.to_owned())).collect()
}

impl Rope {
    /// The keys of config.json that say this embedding, with their values.
    pub fn written(&self) -> Vec<(String, String)> {
        let pair = |key: &str, value: String| (key.to_owned(), value);
        let mut keys = vec![
            pair("rope_type", self.scaling.word().to_owned()),
            pair("rope_theta", self.theta.to_string()),
        ];
        keys.extend(written(&self.scaling.parameters()));
        if let Scaling::Dynamic { original, .. } = self.scaling {
            keys.push(pair("max_position_embeddings", original.to_string()));
        }
        keys
    }
}

impl Scaling {
    /// The parameters that stay when the same method stretches the model to another length: all but the original length and those that
    /// follow from the new one, which are `factor` (not that of [`Scaling::Dynamic`]), `long_factor`, and an `attention_factor` that is the
    /// one computed from `factor`.
    pub fn parameters_at_any_length(&self) -> Parameters {
        let own = self.parameters();
        let computed = match self {
            Scaling::Yarn(yarn) => {
                Some(Yarn { attention_factor: None, ..yarn.clone() }.attention_factor())
            }
            Scaling::LongRope { factor, original, .. } => Some(long_factor(*factor, *original)),
            _ => None,
        };
        // Files have it rounded.
        let is_computed = |given: f64| computed.is_some_and(|by| (given / by - 1.0).abs() < 1e-4);
        Parameters {
            factor: own.factor.filter(|_| matches!(self, Scaling::Dynamic { .. })),
            original_max_position_embeddings: None,
            attention_factor: own.attention_factor.filter(|given| !is_computed(*given)),
            long_factor: None,
            ..own
        }
    }

    /// The parameters of this scaling, as in a file.
    pub fn parameters(&self) -> Parameters {
        let none = Parameters::default();
        match self.clone() {
            Scaling::Default => none,
            // The original length is the file's own.
            Scaling::Linear { factor } | Scaling::Dynamic { factor, .. } => {
                Parameters { factor: Some(factor), ..none }
            }
            Scaling::Yarn(yarn) => Parameters {
                factor: Some(yarn.factor),
                original_max_position_embeddings: Some(yarn.original),
                attention_factor: yarn.attention_factor,
                beta_fast: Some(yarn.beta_fast),
                beta_slow: Some(yarn.beta_slow),
                mscale: yarn.mscale,
                mscale_all_dim: yarn.mscale_all_dim,
                truncate: Some(yarn.truncate),
                ..none
            },
            Scaling::Llama3 { factor, low, high, original } => Parameters {
                factor: Some(factor),
                original_max_position_embeddings: Some(original),
                low_freq_factor: Some(low),
                high_freq_factor: Some(high),
                ..none
            },
            Scaling::LongRope { short, long, factor, attention_factor, original } => Parameters {
                factor: Some(factor),
                original_max_position_embeddings: Some(original),
                attention_factor: Some(attention_factor),
                short_factor: Some(short),
                long_factor: Some(long),
                ..none
            },
        }
    }
}
