//! `annulus score`: loss, logits and gradients of a Hugging Face model on given tokens.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use annulus_data::Sequence;
use annulus_experiment::{Dtype, Recompute, read_config};
use annulus_model::Llama;
use annulus_sequence::{Mask, Return};
use annulus_train::{Setup, Want, model_config, score};
use candle_core::{DType, Device, Tensor};

use crate::Done;
use crate::arguments::Score;
use crate::failure::{DATA, Failure};

const DEADLINE: Duration = Duration::from_secs(60);
/// A target that is left out, as in the labels of `transformers`.
const IGNORED: i64 = -100;

pub(crate) fn run(arguments: &Score) -> Done {
    let shape =
        read_config(&arguments.model).map_err(|problems| Failure { code: DATA, problems })?;
    let sequences = read(&arguments.tokens)?;
    // Whatever the file's dtype: widened, so that the score is the model's and not the format's.
    let config = model_config(&shape, Dtype::F32)?;
    let specification = Llama::specification(&config);
    let weights = annulus_model::load(&arguments.model, &specification, DType::F32)?;
    let setup = Setup {
        config,
        mask: Mask::causal(),
        strategy: arguments.split.strategy,
        returning: Return::default(),
        kernel: arguments.split.kernel.into(),
        tokens: sequences[0].inputs.len(),
        data: 1,
        sequence: arguments.split.ranks,
        micro_batch: sequences.len(),
        recompute: Recompute::Layer,
        loss_chunk: 1024,
        mlp_chunk: None,
        deadline: DEADLINE,
        cores: crate::train::cores(),
    };
    let want = Want { logits: true, gradients: arguments.gradients };
    let scored = score(&setup, &weights, &sequences, want)?;
    let mut out = BTreeMap::new();
    out.insert("loss".to_owned(), Tensor::new(&[scored.loss as f32], &Device::Cpu)?);
    out.extend(scored.logits.map(|logits| ("logits".to_owned(), logits)));
    for (name, gradient) in scored.gradients.into_iter().flatten() {
        out.insert(format!("grad.{name}"), gradient);
    }
    crate::attend::save(&out, &arguments.out)?;
    Ok(0)
}

/// `labels[b, t + 1]` is the target of position `t`; the last position has none.
fn read(path: &Path) -> Result<Vec<Sequence>, Failure> {
    let bad = |text: String| Failure::data(format!("`{}`: {text}", path.display()));
    let file = candle_core::safetensors::load(path, &Device::Cpu)
        .map_err(|error| bad(error.to_string()))?;
    let rows = |name: &str| -> Result<Vec<Vec<i64>>, Failure> {
        let tensor = file.get(name).ok_or_else(|| bad(format!("no tensor `{name}`")))?;
        let tensor = tensor.to_dtype(DType::I64)?;
        tensor
            .to_vec2()
            .map_err(|_| bad(format!("`{name}` has shape {:?}, [B, S] is wanted", tensor.dims())))
    };
    let inputs = rows("input_ids")?;
    let labels = if file.contains_key("labels") { rows("labels")? } else { inputs.clone() };
    if inputs.is_empty() || inputs[0].len() < 2 {
        return Err(bad("`input_ids` needs at least one row of two ids".to_owned()));
    }
    if labels.len() != inputs.len() || labels[0].len() != inputs[0].len() {
        return Err(bad("`labels` and `input_ids` differ in shape".to_owned()));
    }
    let sequence = |(inputs, labels): (Vec<i64>, Vec<i64>)| {
        let ids: Result<Vec<u32>, _> = inputs.into_iter().map(u32::try_from).collect();
        let inputs = ids.map_err(|_| bad("`input_ids` has an id below 0".to_owned()))?;
        let targets = labels.into_iter().skip(1).chain([IGNORED]).collect();
        Ok(Sequence { inputs, targets })
    };
    std::iter::zip(inputs, labels).map(sequence).collect()
}
