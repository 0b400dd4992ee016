//! Keys whose values nothing reads.

use annulus_yaml::Problem;

use crate::{Experiment, Format, Longer, Offload, TextSource};

/// The default of `data.column`.
const COLUMN: &str = "text";
/// Why `longer` means nothing.
const CUT: &str = "documents are cut wherever a sequence ends";

/// Problems of keys that mean nothing. Where the key that they belong to is written, it may be otherwise for once: no problem then.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let (data, memory) = (&experiment.data, &experiment.memory);
    let is_left_out = |key: &str| !experiment.places.contains(key);
    let is_read = |source: &TextSource| source.longer.is_none() && source.pack(data).is_whole();
    // Conversations to evaluate are packed whole, whatever the data are.
    let evaluates =
        experiment.evaluation.path.is_some() && experiment.evaluated_format() == Format::Chat;
    let is_read =
        evaluates || data.path.iter().any(is_read) || data.path.is_empty() && data.pack.is_whole();
    let longer = !is_read && data.longer != Longer::Refuse;
    let folder = memory.offload == Offload::None && memory.offload_folder.is_some();
    let mut problems = columns(experiment);
    problems.extend(lengths(experiment));
    if longer && is_left_out("data.pack") {
        let problem = unused(experiment, "data.longer", CUT);
        problems.push(problem.hint("remove it, or set `data.pack: documents`"));
    }
    if folder && is_left_out("memory.offload") {
        let problem = unused(experiment, "memory.offload_folder", "nothing is offloaded");
        problems.push(problem.hint("remove it, or set `memory.offload`"));
    }
    problems
}

/// What becomes of longer documents, said of sources that are not packed whole.
fn lengths(experiment: &Experiment) -> Vec<Problem> {
    let (data, places) = (&experiment.data, &experiment.places);
    let problem = |(index, source): (usize, &TextSource)| {
        let [longer, pack] = ["longer", "pack"].map(|key| format!("data.path.{index}.{key}"));
        let idle = source.longer.is_some() && !source.pack(data).is_whole();
        let is_written = places.contains("data.pack") || places.contains(&pack);
        let hint = format!("remove it, or set `{pack}: documents`");
        (idle && !is_written).then(|| unused(experiment, &longer, CUT).hint(hint))
    };
    data.path.iter().enumerate().filter_map(problem).collect()
}

/// Columns of texts that have none.
fn columns(experiment: &Experiment) -> Vec<Problem> {
    let data = &experiment.data;
    let has_fields = |source: &TextSource| {
        matches!(source.format.unwrap_or(data.format), Format::Jsonl | Format::Parquet)
    };
    // A text to evaluate on is read by its own ending.
    let is_read = experiment.evaluation.path.is_some()
        || data.path.iter().any(|source| source.column.is_none() && has_fields(source));
    // Nothing else has one, whatever is replaced for once.
    let may_have = matches!(data.format, Format::Text | Format::Jsonl | Format::Parquet);
    let is_written = may_have && experiment.places.contains("data.format");
    let own = data.column != COLUMN && !is_read && !is_written;
    let sources = data.path.iter().enumerate();
    let wrong = sources.filter(|(_, source)| source.column.is_some() && !has_fields(source));
    let wrong = wrong.map(|(number, _)| format!("data.path.{number}.column"));
    let keys = own.then(|| "data.column".to_owned()).into_iter().chain(wrong);
    let why = "only texts of `format: jsonl` or `parquet` have one";
    keys.map(|key| unused(experiment, &key, why).hint("remove it")).collect()
}

/// The problem of a key whose value nothing reads, and `why`.
pub(crate) fn unused(experiment: &Experiment, key: &str, why: &str) -> Problem {
    experiment.places.problem(key, means_nothing(key, why))
}

/// The message that nothing reads the value of `key`, and `why`.
pub(crate) fn means_nothing(key: &str, why: &str) -> String {
    format!("`{key}` has no effect: {why}")
}

#[cfg(test)]
mod tests {
    use crate::parse;

    /// What is said of `data`, as lines of the section.
    fn said(data: &str) -> Option<String> {
        let text = format!(
            "name: x\nmodel: {{ hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1 }}\n\
             data: {{ tokens: 8, batch: 1, path: a, column: body, {data} }}\n\
             optimizer: {{ learning_rate: 0.1 }}\nschedule: {{ steps: 1 }}\n"
        );
        parse("x.yaml", &text, &[]).err().map(|problems| problems.to_string())
    }

    #[test]
    fn a_column_is_refused_where_the_format_that_is_written_has_none() {
        for data in ["format: chat", "format: batches"] {
            let found = said(data).unwrap_or_else(|| panic!("{data}: nothing is said"));
            assert!(found.contains("`data.column`"), "{data}: {found}");
        }
        // Where it is plain text, it may be so for once.
        for data in ["format: jsonl", "format: parquet", "format: text"] {
            assert_eq!(said(data), None, "{data}");
        }
    }
}
