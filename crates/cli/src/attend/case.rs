//! A case of attention: a safetensors file of tensors, positions, and the name of a mask.

use std::path::Path;

use annulus_experiment::Problem;
use annulus_sequence::{Mask, Positions};
use annulus_train::verify::whole::Question;
use candle_core::{DType, Tensor};

use super::mask::{Given, mask_of};
use crate::failure::Failure;
use crate::tensors::TensorFile;

/// The largest position: sums and products of a few of them stay within 64 bits.
const LAST: i64 = 1 << 40;

/// The given tensors, with the positions of their queries and keys.
pub(super) struct Case {
    pub(super) question: Question,
    pub(super) queries: Positions,
    pub(super) keys: Positions,
}

/// An error in a file, with a hint.
pub(super) fn wrong(text: impl Into<String>, hint: impl Into<String>) -> Problem {
    Problem::new(text).hint(hint)
}

impl Case {
    pub(super) fn read(path: &Path) -> Result<Case, Failure> {
        let file = TensorFile::open(path)?;
        let bad = |problem| file.bad_with(problem);
        let number = |name: &str| {
            let tensor = file.tensor(name)?;
            is_number(name, &tensor).map_err(bad)?;
            Ok::<_, Failure>(tensor)
        };
        let [q, k, v, gradient] = [number("q")?, number("k")?, number("v")?, number("dout")?];
        let scale = scale(&file.tensor("scale")?).map_err(bad)?;
        let question = Question { q, k, v, gradient, mask: Mask::full(), scale };
        let Sizes { batch, rows, columns } = shapes(&question).map_err(bad)?;
        let queries = positions("q_pos", &file.tensor("q_pos")?, rows).map_err(bad)?;
        let keys = positions("k_pos", &file.tensor("k_pos")?, columns).map_err(bad)?;

        let optional = |name: &str| file.has(name).then(|| file.tensor(name)).transpose();
        let tensors = [optional("doc_ids")?, optional("padding")?, optional("allowed")?];
        let [documents, padding, allowed] = tensors;
        let given = Given { batch, queries: &queries, keys: &keys, documents, padding };
        let mask = mask_of(file.metadata("mask")?, &given).map_err(bad)?;
        if let Some(allowed) = allowed {
            is_spelled_out(&mask, &given, &allowed).map_err(bad)?;
        }
        Ok(Case { question: Question { mask, ..question }, queries, keys })
    }
}

fn is_number(name: &str, tensor: &Tensor) -> Result<(), Problem> {
    match tensor.dtype() {
        DType::F32 | DType::BF16 | DType::F16 => Ok(()),
        other => {
            let text = format!("`{name}` is {other:?}, expected F32, BF16 or F16");
            Err(wrong(text, format!("save `{name}` in the type it is to be computed in")))
        }
    }
}

fn scale(tensor: &Tensor) -> Result<f64, Problem> {
    let hint = "as a rule it is 1 / sqrt(D), in one number";
    let wide = tensor.flatten_all().and_then(|flat| flat.to_dtype(DType::F64)?.to_vec1::<f64>());
    match wide.as_deref() {
        Ok([scale]) if scale.is_finite() && *scale > 0.0 => Ok(*scale),
        Ok([scale]) => Err(wrong(format!("`scale` is {scale}, expected more than 0"), hint)),
        Ok(all) => Err(wrong(format!("`scale` is {} numbers, expected one", all.len()), hint)),
        Err(error) => Err(wrong(format!("`scale` cannot be read: {error}"), hint)),
    }
}

struct Sizes {
    batch: usize,
    rows: usize,
    columns: usize,
}

/// The sizes of the given tensors, if their shapes fit together.
fn shapes(question: &Question) -> Result<Sizes, Problem> {
    const HINT: &str = "q and dout are [B, Hq, Sq, D], k and v are [B, Hkv, Sk, D], Hq a multiple of Hkv, all of \
                        one type";
    let Question { q, k, v, gradient, .. } = question;
    let (Ok((batch, heads, rows, dim)), Ok((key_batch, groups, columns, key_dim))) =
        (q.dims4(), k.dims4())
    else {
        return Err(wrong("`q` and `k` must have four dimensions", HINT));
    };
    let all = [q, k, v, gradient];
    let fit = batch == key_batch && dim == key_dim && groups > 0 && heads.is_multiple_of(groups);
    if !fit || k.dims() != v.dims() || q.dims() != gradient.dims() {
        let shapes = all.map(Tensor::dims);
        let text = format!("shapes of `q k v dout` do not fit together: {shapes:?}");
        return Err(wrong(text, HINT));
    }
    if all.iter().any(|tensor| tensor.elem_count() == 0) {
        let text =
            format!("`q` of shape {:?} and `k` of {:?} have no elements", q.dims(), k.dims());
        return Err(wrong(text, HINT));
    }
    let types = all.map(Tensor::dtype);
    if types.iter().any(|dtype| *dtype != types[0]) {
        return Err(wrong(format!("`q k v dout` are of types {types:?}"), HINT));
    }
    Ok(Sizes { batch, rows, columns })
}

/// A strictly increasing list of positions, as runs.
fn positions(name: &str, list: &Tensor, rows: usize) -> Result<Positions, Problem> {
    let hint = format!("`{name}` is I64 [{rows}]: where each row is in the sequence, rising");
    let list = whole_numbers(name, list, &hint)?;
    if list.len() != rows {
        let text = format!("`{name}` has {} positions, expected {rows}", list.len());
        return Err(wrong(text, hint));
    }
    if let Some(position) = list.iter().find(|position| !(0..=LAST).contains(*position)) {
        let text = format!("`{name}` has position {position}, expected 0 to {LAST}");
        return Err(wrong(text, hint));
    }
    let list: Vec<usize> = list.into_iter().map(|position| position as usize).collect();
    let text = format!("`{name}`: positions must be strictly increasing");
    Positions::from_list(&list).ok_or_else(|| wrong(text, hint))
}

/// All elements of a tensor of integers.
pub(super) fn whole_numbers(name: &str, list: &Tensor, hint: &str) -> Result<Vec<i64>, Problem> {
    let read = match list.dtype() {
        DType::I64 | DType::U32 | DType::U8 => list.to_dtype(DType::I64),
        other => return Err(wrong(format!("`{name}` is {other:?}, expected I64"), hint)),
    };
    let read = read.and_then(|list| list.flatten_all()?.to_vec1());
    read.map_err(|error| wrong(format!("`{name}` cannot be read: {error}"), hint))
}

/// Checks the mask against the tensor `allowed`, which spells it out pair by pair.
fn is_spelled_out(mask: &Mask, given: &Given<'_>, allowed: &Tensor) -> Result<(), Problem> {
    let Given { batch, queries, keys, .. } = *given;
    let pairs = queries.tokens() * keys.tokens();
    let hint = "`allowed` is the mask spelled out, 1 where a query sees a key: leave it out, or mend one of the two";
    let spelled = whole_numbers("allowed", allowed, hint)?;
    if spelled.len() != pairs && spelled.len() != batch * pairs {
        let text = format!("`allowed` has {} elements, expected {pairs}", spelled.len());
        return Err(wrong(text, hint));
    }
    for (row, spelled) in spelled.chunks(pairs).enumerate() {
        let mut spelled = spelled.iter();
        for query in queries.iter() {
            for key in keys.iter() {
                let is = spelled.next().is_some_and(|one| *one != 0);
                if is != mask.allows_in(row, query, key) {
                    let [says, other] = if is { ["sees", "hides"] } else { ["hides", "sees"] };
                    let text = format!(
                        "in `allowed` query {query} {says} key {key}, which the mask {other}"
                    );
                    return Err(wrong(text, hint));
                }
            }
        }
    }
    Ok(())
}
