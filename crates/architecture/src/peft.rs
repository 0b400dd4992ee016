//! adapter_config.json, as PEFT reads and writes it: what would change an adapter's function and is not supported is refused.

use std::collections::BTreeSet;
use std::path::Path;

use annulus_yaml::{Problem, Problems, read_within};
use serde_json::{Map, Value as Json, json};

use crate::{FullyTrained, Lora, Shape, Target};

/// The file in which PEFT describes adapters.
pub const ADAPTER: &str = "adapter_config.json";

/// Keys, separated by spaces, that mean something else than a plain adapter unless absent, `null`, `false` or empty.
const NEUTRAL: &str = "alora_invocation_tokens alpha_pattern arrow_config corda_config eva_config exclude_modules \
    fan_in_fan_out kasa_config layer_replication layers_pattern layers_to_transform loftq_config \
    lora_bias lora_ga_config monteclora_config rank_pattern target_parameters \
    trainable_token_indices use_bdlora use_dora use_qalora velora_config";

/// Names of a layer's norms, and of the last norm.
const NORMS: [&str; 3] = ["input_layernorm", "post_attention_layernorm", "norm"];
/// Names of the norms of query and key heads.
const HEAD_NORMS: [&str; 2] = ["q_norm", "k_norm"];

/// Reads `folder/adapter_config.json` of adapters for a model of `shape`; the folder becomes their `path`.
///
/// # Errors
/// The key that is not supported.
pub fn read_adapter(folder: &Path, shape: &Shape) -> Result<Lora, Problems> {
    let path = folder.join(ADAPTER);
    let text = read_within(folder, ADAPTER)?;
    let name = path.display();
    let config: Map<String, Json> = serde_json::from_str(&text)
        .map_err(|error| Problem::new(format!("`{name}` is not a JSON object: {error}")))?;
    let read = Reading { name: name.to_string(), config };
    read.refuse()?;
    let rank = read.config.get("r").and_then(Json::as_u64).filter(|rank| (1..=4096).contains(rank));
    let Some(rank) = rank else { return Err(read.wrong("r", "a whole number from 1 to 4096")) };
    let number = |key: &str| read.config.get(key).and_then(Json::as_f64);
    let alpha = number("lora_alpha").filter(|alpha| alpha.is_finite() && *alpha > 0.0);
    let Some(alpha) = alpha else { return Err(read.wrong("lora_alpha", "a number above 0")) };
    let rslora = read.config.get("use_rslora").and_then(Json::as_bool).unwrap_or(false);
    let (targets, train) = (read.targets()?, read.fully_trained(shape)?);
    let dropout = number("lora_dropout").unwrap_or(0.0);
    if !(0.0..1.0).contains(&dropout) {
        return Err(read.wrong("lora_dropout", "a number from 0 to below 1"));
    }
    let (rank, path) = (rank as usize, Some(folder.to_owned()));
    Ok(Lora { rank, alpha, rslora, dropout, targets, train, path })
}

struct Reading {
    name: String,
    config: Map<String, Json>,
}

impl Reading {
    fn wrong(&self, key: &str, wanted: &str) -> Problems {
        let found = self.config.get(key).map_or("nothing".to_owned(), short);
        Problem::new(format!("`{key}` of `{}` is {found}, expected {wanted}", self.name)).into()
    }

    /// Refuses everything but plain adapters of matrices.
    fn refuse(&self) -> Result<(), Problems> {
        let word = |key: &str| self.config.get(key).and_then(Json::as_str);
        if word("peft_type") != Some("LORA") {
            return Err(self.wrong("peft_type", "`LORA`"));
        }
        if !matches!(word("bias"), None | Some("none")) {
            return Err(self.wrong("bias", "`none`"));
        }
        for key in NEUTRAL.split(' ') {
            let neutral = match self.config.get(key) {
                None | Some(Json::Null | Json::Bool(false)) => true,
                Some(Json::Array(list)) => list.is_empty(),
                Some(Json::Object(map)) => map.is_empty(),
                Some(_) => false,
            };
            if !neutral {
                return Err(self.wrong(key, "nothing: this version does not compute that"));
            }
        }
        // Other initializations change the weights beside the adapter.
        match self.config.get("init_lora_weights") {
            None | Some(Json::Null | Json::Bool(_)) => Ok(()),
            Some(Json::String(word)) if word == "gaussian" => Ok(()),
            Some(_) => Err(self.wrong("init_lora_weights", "`true`, `false` or `gaussian`")),
        }
    }

    fn targets(&self) -> Result<Vec<Target>, Problems> {
        let wanted = format!("a list of some of `{}`", Target::WORDS.join("`, `"));
        let wrong = || self.wrong("target_modules", &wanted);
        let all = Target::WORDS.iter().filter_map(|word| Target::from_word(word));
        let list = match self.config.get("target_modules") {
            Some(Json::String(word)) if word == "all-linear" => return Ok(all.collect()),
            Some(Json::Array(list)) if !list.is_empty() => list,
            _ => return Err(wrong()),
        };
        let target = |item: &Json| {
            let word = item.as_str()?;
            let last = word.strip_prefix("self_attn.").or_else(|| word.strip_prefix("mlp."));
            Target::from_word(last.unwrap_or(word))
        };
        let targets: Option<BTreeSet<Target>> = list.iter().map(target).collect();
        Ok(targets.ok_or_else(wrong)?.into_iter().collect())
    }

    fn fully_trained(&self, shape: &Shape) -> Result<Vec<FullyTrained>, Problems> {
        let empty = Vec::new();
        let list = match self.config.get("modules_to_save") {
            None | Some(Json::Null) => &empty,
            Some(Json::Array(list)) => list,
            Some(_) => return Err(self.wrong("modules_to_save", "a list")),
        };
        let mut train = Vec::new();
        let mut norms = Vec::new();
        for item in list {
            let word = item.as_str().unwrap_or_default();
            match word.strip_prefix("model.").unwrap_or(word) {
                "embed_tokens" => train.push(FullyTrained::Embeddings),
                "lm_head" => train.push(FullyTrained::Head),
                word if NORMS.contains(&word) || HEAD_NORMS.contains(&word) => norms.push(word),
                _ => {
                    let wanted = "`embed_tokens`, `lm_head` and the norms";
                    return Err(self.wrong("modules_to_save", wanted));
                }
            }
        }
        // Otherwise PEFT trains the embedding alone, and the model is not tied any more.
        let ties = self.config.get("ensure_weight_tying") == Some(&Json::Bool(true));
        if shape.tie_word_embeddings && train.contains(&FullyTrained::Embeddings) && !ties {
            let wanted = "`true`: the model ties its last projection to the embedding";
            return Err(self.wrong("ensure_weight_tying", wanted));
        }
        // The names of all norms end in `norm`.
        match norms.contains(&"norm") {
            true => train.push(FullyTrained::Norms),
            false if norms.is_empty() => {}
            false => return Err(self.wrong("modules_to_save", "all norms, or none")),
        }
        Ok(BTreeSet::from_iter(train).into_iter().collect())
    }
}

/// A value as it is shown in messages.
fn short(value: &Json) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    let cut: String = text.chars().take(MOST).collect();
    if cut.len() < text.len() { format!("`{cut}…`") } else { format!("`{cut}`") }
}

/// The text of an adapter_config.json for adapters of the model `base`, of shape `shape`; `revision` is that of a model of the hub.
pub fn write_adapter(lora: &Lora, base: &str, revision: Option<&str>, shape: &Shape) -> String {
    let targets: Vec<&str> = lora.targets.iter().map(|target| target.word()).collect();
    let modules = lora.train.iter().flat_map(|what| match what {
        FullyTrained::Embeddings => vec!["embed_tokens"],
        FullyTrained::Head => vec!["lm_head"],
        FullyTrained::Norms if shape.has_query_key_norm() => [&NORMS[..], &HEAD_NORMS].concat(),
        FullyTrained::Norms => NORMS.to_vec(),
    });
    let modules: Vec<&str> = modules.collect();
    let tied = shape.tie_word_embeddings && lora.trains(FullyTrained::Embeddings);
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "revision": revision,
        "inference_mode": true,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "use_rslora": lora.rslora,
        "lora_dropout": lora.dropout,
        "target_modules": targets,
        "modules_to_save": if modules.is_empty() { Json::Null } else { json!(modules) },
        "ensure_weight_tying": tied,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "use_dora": false,
    });
    let text = serde_json::to_string_pretty(&config).expect("words and numbers become JSON");
    text + "\n"
}
