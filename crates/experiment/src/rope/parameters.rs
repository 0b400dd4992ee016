//! What is written beside a kind of scaling, each as optional as in a file; and the scaling it means.

use crate::rope::{Scaling, Yarn, long_factor};
use crate::typed::Typed;
use crate::values::Values;

/// What can be written beside `rope_type:`, under its own names.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(
    missing_docs,
    reason = "the keys of a file, documented where they mean something: in `Scaling`"
)]
pub struct Parameters {
    pub factor: Option<f64>,
    pub original_max_position_embeddings: Option<usize>,
    pub attention_factor: Option<f64>,
    pub beta_fast: Option<f64>,
    pub beta_slow: Option<f64>,
    pub mscale: Option<f64>,
    pub mscale_all_dim: Option<f64>,
    pub truncate: Option<bool>,
    pub low_freq_factor: Option<f64>,
    pub high_freq_factor: Option<f64>,
    pub short_factor: Option<Vec<f64>>,
    pub long_factor: Option<Vec<f64>>,
}

/// What a kind takes beside `rope_theta`.
pub(crate) fn takes(kind: &str) -> &'static [&'static str] {
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
    /// What stands in the first of `sections` that has it.
    pub(crate) fn read(values: &Values, sections: &[String]) -> Parameters {
        let paths = |key: &str| -> Vec<String> {
            sections.iter().map(|section| format!("{section}{key}")).collect()
        };
        let real = |key| paths(key).iter().find_map(|path| values.real(path));
        let reals = |key| paths(key).iter().find_map(|path| values.reals(path));
        let size = |key| paths(key).iter().find_map(|path| values.size(path));
        let truth = |key| paths(key).iter().find_map(|path| values.truth(path));
        Parameters {
            factor: real("factor"),
            original_max_position_embeddings: size("original_max_position_embeddings"),
            attention_factor: real("attention_factor"),
            beta_fast: real("beta_fast"),
            beta_slow: real("beta_slow"),
            mscale: real("mscale"),
            mscale_all_dim: real("mscale_all_dim"),
            truncate: truth("truncate"),
            low_freq_factor: real("low_freq_factor"),
            high_freq_factor: real("high_freq_factor"),
            short_factor: reals("short_factor"),
            long_factor: reals("long_factor"),
        }
    }

    /// The scaling of this kind, in a model whose `max_position_embeddings` is `longest`.
    ///
    /// # Errors
    /// The key that is missing.
    pub(crate) fn scaling(
        &self,
        kind: &str,
        longest: Option<usize>,
    ) -> Result<Scaling, &'static str> {
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

    /// `factor`, or what the lengths say.
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

    /// What is there, under the keys of the file.
    pub(crate) fn entries(&self) -> Vec<(&'static str, Typed)> {
        let real = |value: Option<f64>| value.map(Typed::Real);
        let reals = |values: &Option<Vec<f64>>| values.clone().map(Typed::Reals);
        let original = self.original_max_position_embeddings;
        let all = [
            ("factor", real(self.factor)),
            (
                "original_max_position_embeddings",
                original.map(|tokens| Typed::Count(tokens as u64)),
            ),
            ("attention_factor", real(self.attention_factor)),
            ("beta_fast", real(self.beta_fast)),
            ("beta_slow", real(self.beta_slow)),
            ("mscale", real(self.mscale)),
            ("mscale_all_dim", real(self.mscale_all_dim)),
            ("truncate", self.truncate.map(Typed::Truth)),
            ("low_freq_factor", real(self.low_freq_factor)),
            ("high_freq_factor", real(self.high_freq_factor)),
            ("short_factor", reals(&self.short_factor)),
            ("long_factor", reals(&self.long_factor)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }
}

impl Scaling {
    /// What is written beside the kind.
    pub(crate) fn parameters(&self) -> Parameters {
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
