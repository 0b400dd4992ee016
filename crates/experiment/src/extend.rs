//! The section `extend`: a model for longer sequences. Its rotary embedding is rescaled for the new length, and checkpoints record that
//! length and the original one.

use annulus_architecture::{
    MOST_POSITIONS, Parameters, Rope, Scaling, Shape, ntk_theta, rope_keys_of,
};
use annulus_yaml::Absent::{Means, Required};
use annulus_yaml::Interval::AboveZero;
use annulus_yaml::Kind::{Real, Tokens, Word};
use annulus_yaml::{Places, Problem, section, words};

use crate::Experiment;

section! {
    /// The section `extend`: a model for longer sequences.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Extension {
        rope: RopeMethod = Word(RopeMethod::WORDS), Required, "how the rotary frequencies are scaled";
        tokens: usize = Tokens(2, MOST_POSITIONS), Required, "the new longest sequence";
        theta: Option<f64> = Real(AboveZero), Means("the model's"), "base of the frequencies: abf";
        ..parameters: Parameters;
    }
}

/// The key `rope`: how the rotary embedding is rescaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeMethod {
    /// Position interpolation, [`Scaling::Linear`].
    Linear,
    /// Dynamic NTK scaling, [`Scaling::Dynamic`].
    Dynamic,
    /// NTK-aware: the base with which the slowest pair turns slower by the factor that sequences grow by.
    Ntk,
    /// Adjusted base frequency: another base, which is given.
    Abf,
    /// YaRN, [`Scaling::Yarn`].
    Yarn,
    /// Llama 3's scaling, [`Scaling::Llama3`].
    Llama3,
    /// LongRoPE, [`Scaling::LongRope`].
    LongRope,
}

words!(RopeMethod {
    Linear = "linear",
    Dynamic = "dynamic",
    Ntk = "ntk",
    Abf = "abf",
    Yarn = "yarn",
    Llama3 = "llama3",
    LongRope = "longrope",
});

impl Extension {
    /// `shape` extended to the new length.
    ///
    /// # Errors
    /// When `rope` cannot rescale this model, the new length is not longer than the model's, or a parameter is missing.
    pub(crate) fn apply(&self, shape: Shape, places: &Places) -> Result<Shape, Problem> {
        let method = self.rope.word();
        let problem =
            |key: &str, message: String| places.problem(&format!("extend.{key}"), message);
        let kind = shape.rope.scaling.word();
        let plain = shape.rope.scaling == Scaling::Default;
        if !plain && !self.replaces(&shape.rope.scaling) {
            let message = format!("`rope: {method}` cannot stretch a model of `rope_type: {kind}`");
            return Err(problem("rope", message).hint(self.instead(&shape.rope.scaling)));
        }
        let own = self.parameters.original_max_position_embeddings;
        let original = own.or(shape.rope.original()).or(shape.max_position_embeddings);
        let Some(original) = original else {
            let message = "`model.max_position_embeddings` is missing: `extend` needs the length the model was trained for";
            let hint = "add it to `model`: the longest sequence that it was trained for";
            return Err(places.problem("model", message).hint(hint));
        };
        self.refuse_shorter(&shape, original, places)?;
        let rope = self.stretched(&shape, original).map_err(|key| {
            let such = if key == "theta" { ", such as 5e5" } else { "" };
            let missing = format!("`extend.{key}` is missing, which `rope: {method}` needs");
            problem(key, missing).hint(format!("add `{key}:` under `extend:`{such}"))
        })?;
        // Dynamic scaling starts beyond the model's own length, which config.json must keep.
        let is_dynamic = matches!(rope.scaling, Scaling::Dynamic { .. });
        let longest = if is_dynamic { original } else { self.tokens };
        Ok(Shape { rope, max_position_embeddings: Some(longest), ..shape })
    }

    /// Refuses a length that is no more than the model's `original` one, or than the one that it was stretched to before.
    fn refuse_shorter(
        &self,
        shape: &Shape,
        original: usize,
        places: &Places,
    ) -> Result<(), Problem> {
        let stretched = shape.rope.scaling != Scaling::Default;
        let longest = shape.max_position_embeddings.filter(|_| stretched);
        let longest = longest.map_or(original, |longest| longest.max(original));
        if self.tokens > longest {
            return Ok(());
        }
        let whose = if longest > original {
            format!("that the model has by `rope_type: {}`", shape.rope.scaling.word())
        } else {
            "of the model".to_owned()
        };
        let message = format!("{} tokens are no more than the {longest} {whose}", self.tokens);
        let hint = format!(
            "more than {longest}; or remove `extend` (`extend=null` on the command line), to train within the model's own length"
        );
        Err(places.problem("extend.tokens", message).hint(hint))
    }

    /// Whether this stretch can replace `scaling`, starting again from the original length.
    fn replaces(&self, scaling: &Scaling) -> bool {
        let known = !matches!(scaling, Scaling::Linear { .. } | Scaling::Dynamic { .. });
        match self.rope {
            RopeMethod::Abf => true,
            RopeMethod::Yarn | RopeMethod::Llama3 | RopeMethod::LongRope => known,
            RopeMethod::Dynamic => matches!(scaling, Scaling::Dynamic { .. }),
            RopeMethod::Linear | RopeMethod::Ntk => false,
        }
    }

    fn instead(&self, scaling: &Scaling) -> String {
        let methods = RopeMethod::WORDS.iter().filter_map(|word| RopeMethod::from_word(word));
        let others =
            methods.filter(|method| Extension { rope: *method, ..self.clone() }.replaces(scaling));
        let words: Vec<&str> = others.map(RopeMethod::word).collect();
        format!("use `{}`", words.join("` or `"))
    }

    /// The parameters as written; of a model that the same method stretched before, its own where they are absent.
    fn parameters_with_those_of(&self, scaling: &Scaling) -> Parameters {
        let written = self.parameters.clone();
        if scaling.word() != self.rope.word() {
            return written;
        }
        let mut own = scaling.parameters_at_any_length();
        // Beside it, coefficients of it that are written would mean nothing.
        if written.mscale.or(written.mscale_all_dim).is_some() {
            own.attention_factor = None;
        }
        written.or(own)
    }

    fn stretched(&self, shape: &Shape, original: usize) -> Result<Rope, &'static str> {
        let Rope { theta, scaling } = shape.rope.clone();
        let stretch = self.tokens as f64 / original as f64;
        let mut given = self.parameters_with_those_of(&scaling);
        given.original_max_position_embeddings = Some(original);
        match self.rope {
            RopeMethod::Abf => return Ok(Rope { theta: self.theta.ok_or("theta")?, scaling }),
            RopeMethod::Ntk => {
                let by = given.factor.unwrap_or(stretch);
                return Ok(Rope { theta: ntk_theta(theta, by, shape.head_dim as f64), scaling });
            }
            // As in the paper, the base follows the length by itself.
            RopeMethod::Dynamic => given.factor = given.factor.or(Some(1.0)),
            RopeMethod::Llama3 => {
                given.factor = given.factor.or(Some(stretch));
                given.low_freq_factor = given.low_freq_factor.or(Some(1.0));
                given.high_freq_factor = given.high_freq_factor.or(Some(4.0));
            }
            RopeMethod::LongRope => {
                given.factor = given.factor.or(Some(stretch));
                let ones = || vec![1.0; shape.head_dim / 2];
                given.short_factor = Some(given.short_factor.unwrap_or_else(ones));
            }
            RopeMethod::Linear | RopeMethod::Yarn => given.factor = given.factor.or(Some(stretch)),
        }
        Ok(Rope { theta, scaling: given.scaling(self.rope.word(), Some(original))? })
    }
}

/// Broken rules of the section `extend`, in itself and against the sequences.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let Some(extension) = &experiment.extend else { return Vec::new() };
    let (places, tokens) = (&experiment.places, experiment.data.tokens);
    let method = extension.rope;
    let own: &[&str] = match method {
        RopeMethod::Abf => &["original_max_position_embeddings"],
        // These scale from the model's own length and take none.
        RopeMethod::Ntk | RopeMethod::Linear | RopeMethod::Dynamic => {
            &["factor", "original_max_position_embeddings"]
        }
        _ => rope_keys_of(method.word()),
    };
    let written = extension.parameters.written();
    let written = written.iter().map(String::as_str);
    let theta = extension.theta.map(|_| "theta").filter(|_| method != RopeMethod::Abf);
    let strays = written.filter(|key| !own.contains(key)).chain(theta);
    let mut problems: Vec<Problem> = strays
        .map(|key| {
            let message = format!("`extend.{key}` has no effect with `rope: {}`", method.word());
            places.problem(&format!("extend.{key}"), message).hint(format!("remove `{key}`"))
        })
        .collect();
    if tokens > extension.tokens {
        let longest = extension.tokens;
        let message =
            format!("sequences of {tokens} tokens are longer than `extend.tokens`, {longest}");
        let hint =
            format!("set `data.tokens` to {longest} or less, or `extend.tokens` to {tokens}");
        problems.push(places.problem("extend.tokens", message).hint(hint));
    }
    problems
}
