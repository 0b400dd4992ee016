//! Messages of TensorBoard's plugins: charts of several curves in an order of one's own, and a table of runs by their
//! hyperparameters.
//!
//! Field numbers are those of `custom_scalar/layout.proto`, `hparams/plugin_data.proto`, `hparams/api.proto` and of
//! `google.protobuf.Value`.

use crate::Payload;
use crate::message::Message;

/// A titled group of charts on the page "Custom Scalars".
#[derive(Clone, Debug, PartialEq)]
pub struct Category {
    /// The title above the charts.
    pub title: String,
    /// The charts, in order.
    pub charts: Vec<Chart>,
}

/// A chart of one or more curves.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The title above the chart.
    pub title: String,
    /// Regular expressions, each held to the beginning of a tag.
    pub tags: Vec<String>,
}

/// The value of a hyperparameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// A number: TensorBoard can sort and filter by it.
    Number(f64),
    /// A word.
    Word(String),
}

/// `DataType.DATA_TYPE_STRING` and `DATA_TYPE_FLOAT64` of `hparams/api.proto`.
const WORD: u64 = 1;
const NUMBER: u64 = 3;

/// Columns that the page "HParams" shows before anybody asks for more.
const SHOWN: usize = 5;

/// The layout of the page "Custom Scalars": `Layout { category { title, chart { title, multiline { tag } } } }`.
pub(crate) fn layout(categories: &[Category]) -> Payload {
    let text = |title: &str| Message::default().bytes(1, title.as_bytes());
    let chart = |chart: &Chart| {
        let tag = |list: Message, tag: &String| list.bytes(1, tag.as_bytes());
        let tags = chart.tags.iter().fold(Message::default(), tag);
        text(&chart.title).message(2, &tags)
    };
    let category = |category: &Category| {
        let add = |message: Message, one: &Chart| message.message(2, &chart(one));
        category.charts.iter().fold(text(&category.title), add)
    };
    let add = |message: Message, one: &Category| message.message(2, &category(one));
    Payload::Plugin {
        tag: "custom_scalars__config__".into(),
        plugin: "custom_scalars".into(),
        content: Vec::new(),
        value: categories.iter().fold(Message::default(), add).0,
    }
}

/// The columns of the page "HParams": `Experiment { hparam_infos { name, type, differs }, metric_infos { name { tag } } }`.
/// TensorBoard shows [`SHOWN`] at first, before all those that say that runs differ in them; one run cannot know, so the
/// first ones say so.
pub(crate) fn columns(settings: &[(&str, Setting)], metrics: &[&str]) -> Payload {
    let info = |message: Message, (index, (name, setting)): (usize, &(&str, Setting))| {
        let kind = if matches!(setting, Setting::Number(_)) { NUMBER } else { WORD };
        let info = Message::default().bytes(1, name.as_bytes()).number(4, kind);
        let info = if index < SHOWN { info.number(7, 1) } else { info };
        message.message(4, &info)
    };
    let metric = |message: Message, tag: &&str| {
        let name = Message::default().bytes(2, tag.as_bytes());
        message.message(5, &Message::default().message(1, &name))
    };
    let infos = settings.iter().enumerate().fold(Message::default(), info);
    let experiment = metrics.iter().fold(infos, metric);
    hparams("_hparams_/experiment", &Message::default().message(2, &experiment))
}

/// A run's row in it: `SessionStartInfo { hparams { key, value }, start_time_secs }`.
pub(crate) fn row(settings: &[(&str, Setting)], start: f64) -> Payload {
    let entry = |message: Message, (name, setting): &(&str, Setting)| {
        let value = match setting {
            Setting::Number(number) => Message::default().double(2, *number),
            Setting::Word(word) => Message::default().bytes(3, word.as_bytes()),
        };
        message.message(1, &Message::default().bytes(1, name.as_bytes()).message(2, &value))
    };
    let session = settings.iter().fold(Message::default(), entry).double(5, start);
    hparams("_hparams_/session_start_info", &Message::default().message(3, &session))
}

fn hparams(tag: &str, message: &Message) -> Payload {
    let content = message.0.clone();
    Payload::Plugin { tag: tag.into(), plugin: "hparams".into(), content, value: Vec::new() }
}
