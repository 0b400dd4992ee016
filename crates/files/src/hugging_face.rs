//! The files of a model's folder, as Hugging Face's programs name them.

use std::path::{Component, Path};

/// What a model is: its sizes and the types of its layers.
pub const CONFIG: &str = "config.json";
/// How text is generated, unless the caller says otherwise.
pub const GENERATION_CONFIG: &str = "generation_config.json";

/// All weights in one file.
pub const WEIGHTS: &str = "model.safetensors";
/// Which file holds which of the weights, where several do.
pub const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// What the adapters of PEFT are.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The weights of adapters.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// The tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// How `transformers` reads the tokenizer: its special tokens and its chat template.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Special tokens, as older programs name them.
pub const SPECIAL_TOKENS: &str = "special_tokens_map.json";
/// The ids of tokens that were added later, as older programs name them.
pub const ADDED_TOKENS: &str = "added_tokens.json";
/// The chat template, where it is not in [`TOKENIZER_CONFIG`].
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// Files that may lie beside a tokenizer and belong to it: those of slow tokenizers, too.
pub const BESIDE_TOKENIZER: [&str; 7] = [
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
    CHAT_TEMPLATE,
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    ADDED_TOKENS,
];

/// The folder of chat templates that have names: `additional_chat_templates/NAME.jinja`.
pub const TEMPLATES: &str = "additional_chat_templates";
/// The most chat templates with names: a tokenizer has a handful.
pub const MOST_TEMPLATES: usize = 100;

/// The largest of these files that is read or copied, but for weights, in bytes: four times the largest tokenizer in use.
pub const LARGEST: u64 = 1 << 26;

/// Whether `name` is a file name on any system, with no folder before it.
pub fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let normal = matches!(components.next(), Some(Component::Normal(only)) if only == name);
    normal && components.next().is_none() && !name.contains(['/', '\\', ':', '\0'])
}

/// Whether a file of a model's folder is a chat template with a name: plain but for the folder of templates.
pub fn is_template(file: &str) -> bool {
    let name = file.strip_prefix(TEMPLATES).and_then(|name| name.strip_prefix('/'));
    name.is_some_and(|name| {
        is_plain(name) && Path::new(name).extension().is_some_and(|kind| kind == "jinja")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_lead_nowhere_else() {
        assert!(["a", "model-1.safetensors", ".a", "a b"].into_iter().all(is_plain));
        for name in ["", ".", "..", "/a", "a/b", "a/", "./a", "a\\b", "c:a", "a\0"] {
            assert!(!is_plain(name), "{name:?}");
        }
    }

    #[test]
    fn templates_are_in_their_folder_alone() {
        assert!(is_template("additional_chat_templates/rag.jinja"));
        for name in ["rag.jinja", "x/rag.jinja", "/.jinja", "/a/x.jinja", "/../x.jinja", "/x.txt"] {
            assert!(!is_template(name) && !is_template(&format!("{TEMPLATES}{name}")), "{name}");
        }
    }
}
