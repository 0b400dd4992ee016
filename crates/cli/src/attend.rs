//! `annulus attend`: attention and its gradients on given tensors.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use annulus_sequence::{Mask, Positions, Return, Rule};
use annulus_train::open_device;
use annulus_train::whole::{Answer, Question, Split, attend, attend_tile};
use candle_core::{DType, Tensor};

use crate::Done;
use crate::arguments::Attend;
use crate::failure::{Failure, USAGE};
use crate::print;
use crate::tensors::{TensorFile, save};

const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn run(arguments: &Attend) -> Done {
    let case = Case::read(&arguments.case)?;
    print::warn_of_device(arguments.split.device);
    let split = Split {
        strategy: arguments.split.strategy,
        ranks: arguments.split.ranks,
        returning: Return::default(),
        kernel: arguments.split.kernel.into(),
        deterministic: arguments.split.deterministic,
        deadline: DEADLINE,
        cores: crate::train::cores(),
        processor: open_device(arguments.split.device)?,
    };
    let whole = Positions::all(case.queries.tokens());
    let answer = if case.queries == whole && case.keys == whole {
        crate::layout::check(&arguments.split, whole.tokens())?;
        attend(&case.question, &split)?
    } else {
        if split.ranks != 1 {
            let text =
                "queries and keys are not one whole sequence: they cannot be split over ranks";
            let hint = "leave `--ranks` out: it runs as one tile".to_owned();
            return Err(Failure::new(USAGE, text, Some(hint)));
        }
        attend_tile(&case.question, &case.queries, &case.keys, &split)?
    };
    write(&answer, &arguments.out)?;
    Ok(0)
}

struct Case {
    question: Question,
    queries: Positions,
    keys: Positions,
}

impl Case {
    fn read(path: &Path) -> Result<Case, Failure> {
        let file = TensorFile::open(path)?;
        let bad = |text: String| file.bad(text);
        let scale = file.tensor("scale")?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?;
        let &[scale] = scale.as_slice() else {
            return Err(bad(format!("`scale` is {} numbers, wanted one", scale.len())));
        };
        let number = |name: &str| {
            let tensor = file.tensor(name)?;
            match tensor.dtype() {
                DType::F32 | DType::BF16 | DType::F16 => Ok(tensor),
                other => Err(bad(format!("`{name}` is {other:?}, wanted F32, BF16 or F16"))),
            }
        };
        let question = Question {
            q: number("q")?,
            k: number("k")?,
            v: number("v")?,
            gradient: number("dout")?,
            mask: mask(file.metadata("mask")?).map_err(bad)?,
            scale,
        };
        let (rows, columns) = shapes(&question).map_err(bad)?;
        let queries = positions(&file.tensor("q_pos")?, rows).map_err(bad)?;
        let keys = positions(&file.tensor("k_pos")?, columns).map_err(bad)?;
        Ok(Case { question, queries, keys })
    }
}

/// Rows of queries and of keys, if the shapes fit together.
fn shapes(question: &Question) -> Result<(usize, usize), String> {
    let Question { q, k, v, gradient, .. } = question;
    let (Ok((batch, heads, rows, dim)), Ok((key_batch, groups, columns, key_dim))) =
        (q.dims4(), k.dims4())
    else {
        return Err("`q` and `k` must have four dimensions".to_owned());
    };
    let fit = batch == key_batch && dim == key_dim && groups > 0 && heads.is_multiple_of(groups);
    if !fit || k.dims() != v.dims() || q.dims() != gradient.dims() {
        let shapes = [q, k, v, gradient].map(Tensor::dims);
        return Err(format!("shapes of `q k v dout` do not fit together: {shapes:?}"));
    }
    Ok((rows, columns))
}

/// `causal`, `window:7`, `causal+window:7`, `full`: the parts must all hold.
fn mask(name: &str) -> Result<Mask, String> {
    name.split('+').try_fold(Mask::full(), |mask, part| match part.split_once(':') {
        None if part == "full" => Ok(mask),
        None if part == "causal" => Ok(mask.and(Rule::Causal)),
        Some(("window", width)) => match width.parse() {
            Ok(width) => Ok(mask.and(Rule::Window(width))),
            Err(_) => Err(format!("the mask `{part}` needs a number")),
        },
        _ => Err(format!("the mask `{part}` is not supported; full, causal and window:N are")),
    })
}

/// A strictly increasing list as runs.
fn positions(list: &Tensor, rows: usize) -> Result<Positions, String> {
    let list: Vec<i64> = list.to_vec1().map_err(|error| error.to_string())?;
    if list.len() != rows || list.iter().any(|&position| position < 0) {
        return Err(format!("{rows} positions from 0 on are wanted, there are {}", list.len()));
    }
    let list: Vec<usize> = list.into_iter().map(|position| position as usize).collect();
    Positions::from_list(&list).ok_or_else(|| "positions must be strictly increasing".to_owned())
}

fn write(answer: &Answer, path: &Path) -> Result<(), Failure> {
    let Answer { out, lse, dq, dk, dv } = answer;
    let tensors = [("out", out), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv)];
    let tensors: BTreeMap<_, _> =
        tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
    save(&tensors, path)
}
