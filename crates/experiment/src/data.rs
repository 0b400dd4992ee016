//! Where sequences come from: `data:`.

use std::path::PathBuf;

use crate::experiment::words;

/// `data:`
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// A file or folder; none: made up if `format: recall` or `needles`, else the project's own
    /// documents.
    pub path: Option<PathBuf>,
    /// `text | jsonl | chat | batches | recall | needles`; default text.
    pub format: Format,
    /// `bytes` or a tokenizer.json; default `bytes`. Of a model of the hub, `hf://…` until it is there.
    pub tokenizer: String,
    /// `hf://owner/name@revision`, where the tokenizer is a model's of the hub.
    pub tokenizer_hub: Option<String>,
    /// Inputs per sequence. Required.
    pub tokens: usize,
    /// Sequences per optimizer step, whatever the ranks; default 1.
    pub batch: usize,
    /// Sequences held out at the end of the data, and evaluated; default 8, 0 for
    /// `format: batches` (0: none).
    pub evaluate: usize,
    /// `stream | documents`; default documents for `format: chat`, else stream.
    pub pack: Pack,
    /// `refuse | cut | drop`; default refuse. Of documents that are packed whole.
    pub longer: Longer,
}

/// `pack:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pack {
    /// Documents one after the other, cut wherever a sequence ends.
    Stream,
    /// As many whole documents as fit, and padding.
    Documents,
}

words!(Pack { Stream = "stream", Documents = "documents" });

/// `longer:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Longer {
    /// A document longer than a sequence is an error.
    Refuse,
    /// What is beyond is left out.
    Cut,
    /// All of it is left out.
    Drop,
}

words!(Longer { Refuse = "refuse", Cut = "cut", Drop = "drop" });

/// `format:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Plain text.
    Text,
    /// A line, a JSON object with `text`; or a parquet file's row.
    Jsonl,
    /// A line, a JSON object with `messages`, of which the assistant's are learned.
    Chat,
    /// A safetensors file of ready-made batches.
    Batches,
    /// The synthetic recall task.
    Recall,
    /// Recall with few facts, at any place.
    Needles,
}

words!(Format {
    Text = "text",
    Jsonl = "jsonl",
    Chat = "chat",
    Batches = "batches",
    Recall = "recall",
    Needles = "needles",
});

impl Format {
    /// Whether sequences come from no file.
    pub fn is_made_up(self) -> bool {
        matches!(self, Format::Recall | Format::Needles)
    }
}
