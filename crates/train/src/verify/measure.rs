//! Inputs whose softmax is peaked, and the distance between two tensors.

use annulus_data::Sequence;
use annulus_ops::{Key, normal, uniform};
use annulus_plan::Plan;
use annulus_sequence::{Heads, Mask};
use candle_core::{DType, Device, Result, Tensor};

use crate::verify::whole::Question;

/// Inputs of attention, 2 N(0, 1) everywhere, so that the softmax is peaked and its rescaling is exercised.
pub(super) fn question(plan: &Plan, mask: Mask) -> Result<Question> {
    let (shape, tokens) = (&plan.shape, plan.experiment.data.tokens);
    let random = |name: &str, heads: usize| {
        let size = (1, heads, tokens, shape.head_dim);
        let key = Key { seed: plan.experiment.seed, purpose: "verify", name };
        let values = normal(key, 0, heads * tokens * shape.head_dim);
        Tensor::from_vec(values, size, &Device::Cpu)? * 2.0
    };
    let (heads, key_value_heads) = (shape.num_attention_heads, shape.num_key_value_heads);
    Ok(Question {
        q: random("q", heads)?,
        k: random("k", key_value_heads)?,
        v: random("v", key_value_heads)?,
        gradient: random("gradient", heads)?,
        mask,
        scale: 1.0 / (shape.head_dim as f64).sqrt(),
    })
}

/// A sequence of random ids, since what a text says does not matter here; of random documents where they are told apart.
pub(super) fn sequence(plan: &Plan, vocabulary: usize, packed: bool) -> Sequence {
    let tokens = plan.experiment.data.tokens;
    let random = |name, index, below: usize| {
        let key = Key { seed: plan.experiment.seed, purpose: "verify", name };
        uniform(key, index, below as u64)
    };
    let ids: Vec<u32> =
        (0..=tokens as u64).map(|index| random("tokens", index, vocabulary) as u32).collect();
    let mut documents = Vec::new();
    let mut left = if packed { tokens } else { 0 };
    while left > 0 {
        let length = 1 + random("documents", documents.len() as u64, left) as usize;
        documents.push(length);
        left -= length;
    }
    Sequence { documents, ..Sequence::shifted(&ids) }
}

/// Inputs q = k = 0, so that every visible key has the same weight, and one-hot v: it marks positions from `first` on, as many per
/// KV head as a head is wide.
pub(super) fn one_hot(
    tokens: usize,
    heads: Heads,
    width: usize,
    first: usize,
    mask: &Mask,
) -> Result<Question> {
    let mut marks = vec![0f32; heads.key_value * tokens * width];
    for (mark, position) in (first..tokens).take(heads.key_value * width).enumerate() {
        let (head, column) = (mark / width, mark % width);
        marks[(head * tokens + position) * width + column] = 1.0;
    }
    let zeros = |heads| Tensor::zeros((1, heads, tokens, width), DType::F32, &Device::Cpu);
    Ok(Question {
        q: zeros(heads.query)?,
        k: zeros(heads.key_value)?,
        v: Tensor::from_vec(marks, (1, heads.key_value, tokens, width), &Device::Cpu)?,
        gradient: zeros(heads.query)?,
        mask: mask.clone(),
        scale: 1.0,
    })
}

/// How many units in the last place of `dtype` the rows `out` of all queries, each of `width` columns, are off 1 / count where a key is
/// seen; infinite where the support is not exact.
pub(super) fn visibility_error(
    out: &[f64],
    width: usize,
    mask: &Mask,
    first: usize,
    dtype: DType,
) -> f64 {
    let tokens = out.len() / width;
    let mut worst = 0.0f64;
    for (query, row) in out.chunks_exact(width).enumerate() {
        let count = (0..tokens).filter(|&key| mask.allows(query, key)).count();
        let wanted = 1.0 / count as f32;
        let unit = (f64::from(wanted.next_up()) - f64::from(wanted)) * coarser(dtype);
        for (column, &found) in row.iter().enumerate().take(tokens - first) {
            let error = match mask.allows(query, first + column) {
                true => (found - f64::from(wanted)).abs() / unit,
                false if found == 0.0 => 0.0,
                false => f64::INFINITY,
            };
            let missed = mask.allows(query, first + column) && found == 0.0;
            worst = worst.max(if missed || error.is_nan() { f64::INFINITY } else { error });
        }
    }
    worst
}

/// How many times the unit in the last place of `dtype` is that of f32.
fn coarser(dtype: DType) -> f64 {
    if dtype == DType::BF16 { 65_536.0 } else { 1.0 }
}

/// All elements of a tensor, in f64.
pub(super) fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// The error of `a` against `b`: max|a - b| / max|b|, or max|a - b| where b is all zero. Infinite values must be equal and are left out;
/// NaN is infinitely wrong.
pub(super) fn error(a: &[f64], b: &[f64]) -> f64 {
    let (mut off, mut largest) = (0.0f64, 0.0f64);
    for (&a, &b) in std::iter::zip(a, b) {
        let difference = if a == b { 0.0 } else { (a - b).abs() };
        off = off.max(if difference.is_nan() { f64::INFINITY } else { difference });
        largest = largest.max(if b.is_finite() { b.abs() } else { 0.0 });
    }
    if a.len() != b.len() {
        f64::INFINITY
    } else if largest > 0.0 {
        off / largest
    } else {
        off
    }
}

/// A gradient of less than this share of the model's largest one is rounding around 0: where each query sees one key, those of queries and
/// keys are 0.
const ROUNDING: f64 = 1e-6;

/// The Euclidean norm.
pub(super) fn norm(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The error of `a` against `b` in the Euclidean norm: |a - b| / |b|; relative to `largest`, the norm of the model's largest gradient, where
/// b is 0 but for rounding.
pub(super) fn distance(a: &[f64], b: &[f64], largest: f64) -> f64 {
    let off: Vec<f64> = std::iter::zip(a, b).map(|(a, b)| a - b).collect();
    let (off, norm) = (norm(&off), norm(b));
    match a.len() == b.len() {
        false => f64::INFINITY,
        true if norm > ROUNDING * largest => off / norm,
        true if largest > 0.0 => off / largest,
        true => off,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_seen() {
        assert!(error(&[1.0, f64::NAN], &[1.0, 2.0]).is_infinite());
        assert!(error(&[1.0, f64::NEG_INFINITY], &[1.0, 2.0]).is_infinite());
        assert!(error(&[1.0], &[1.0, 2.0]).is_infinite());
        assert_eq!(error(&[f64::NEG_INFINITY, 3.0], &[f64::NEG_INFINITY, 2.0]), 0.5);
        assert_eq!(distance(&[3.0, 4.5], &[3.0, 4.0], 100.0), 0.1);
        assert!((distance(&[3e-9], &[1e-9], 1.0) - 2e-9).abs() < 1e-15);
        assert!(distance(&[f64::NAN], &[0.0], 1.0).is_nan());
        let seen = |out: &[f64]| visibility_error(out, 2, &Mask::causal(), 0, DType::F32);
        assert_eq!(seen(&[1.0, 0.0, 0.5, 0.5]), 0.0);
        assert!(seen(&[1.0, 0.1, 0.5, 0.5]).is_infinite());
        assert!(seen(&[1.0, 0.0, 0.0, 0.5]).is_infinite());
        assert!(seen(&[1.0, 0.0, 0.6, 0.5]) > 1.0);
    }
}
