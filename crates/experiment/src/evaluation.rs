//! The section `evaluation`: which tasks a model is given, and at which lengths.

use std::path::PathBuf;

use annulus_yaml::Absent::{Is, Means};
use annulus_yaml::Kind::{Count, CountOr, Path, Sizes, Tokens, Word, Words};
use annulus_yaml::{Problem, Scalar, Typed, section, words};

use crate::data::{MOST_TOKENS, TEXTS, ending};
use crate::unused::unused;
use crate::{Experiment, Format, TextSource};

/// The word of `evaluation.windows` for as many as there are.
const ALL: &str = "all";
/// Targets per window where the file does not say.
const TARGETS: usize = 512;

section! {
    /// The section `evaluation`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Evaluation {
        path: Option<PathBuf> = Path, Means("the held-out part of `data.path`"),
            "a file or folder of texts or conversations that was not trained on";
        format: Option<Format> = Word(TEXTS),
            Means("text for `.txt` and `.md`; jsonl or parquet by the ending, or chat where `data.format` is; else `data.format`"),
            "format of `path`; of conversations (chat) the loss is that of the assistant's tokens";
        tasks: Option<Vec<EvaluationTask>> = Words(EvaluationTask::WORDS),
            Means("[perplexity], or [needle] where `data.format` is needles"),
            "loss of texts and conversations (perplexity), or questions about generated texts";
        depths: usize = Count(1, 1 << 10), Is("11"),
            "number of depths for needles, pass keys and lines, from the first token to the last";
        samples: usize = Count(1, 1 << 20), Is("8"), "questions per task, length and depth";
        lengths: Option<Vec<usize>> = Sizes(MOST_TOKENS), Means("`data.tokens` alone"),
            "tokens per sequence";
        windows: Option<EvaluationWindows> = CountOr(2, 1 << 20, &[ALL]),
            Means("32, or as many as the text has targets for"),
            "stretches of text, each scored at every length with the same end; all: as many as follow each other without gaps; conversations are scored whole";
        targets: Option<usize> = Tokens(1, MOST_TOKENS), Means("512, or half of the shortest length"),
            "tokens at the end of a window that are scored, the same at every length";
        against: Option<usize> = Tokens(1, MOST_TOKENS), Means("the shortest length"),
            "the length that the others are compared with, window by window";
    }
}

/// The value of `evaluation.windows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationWindows {
    /// Windows whose targets follow each other without gaps: the loss is that of a sliding window with a stride of `evaluation.targets`
    /// (Press et al., arXiv 2012.15832, section 2).
    All,
    /// This many, spread evenly over the text.
    Count(usize),
}

impl Scalar for EvaluationWindows {
    fn from_typed(typed: &Typed) -> Option<EvaluationWindows> {
        match typed {
            Typed::Count(windows) => usize::try_from(*windows).ok().map(EvaluationWindows::Count),
            Typed::Text(word) if word == ALL => Some(EvaluationWindows::All),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match self {
            EvaluationWindows::All => ALL.to_owned(),
            EvaluationWindows::Count(windows) => windows.to_string(),
        }
    }
}

/// An item of `evaluation.tasks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationTask {
    /// The loss on texts and conversations.
    Perplexity,
    /// Retrieval of a number from a text about other things, by depth.
    Needle,
    /// Retrieval of a pass key from a text, by depth.
    Passkey,
    /// Retrieval of what one of many lines says, by depth.
    Lines,
    /// Retrieval of a single number.
    Single,
    /// Retrieval of one of several numbers.
    MultiKey,
    /// Retrieval of all of several numbers.
    MultiValue,
    /// Tracing of variables that are assigned to each other.
    Variables,
    /// Listing of words that occur often.
    CommonWords,
    /// Listing of the most frequent words.
    FrequentWords,
}

words!(EvaluationTask {
    Perplexity = "perplexity",
    Needle = "needle",
    Passkey = "passkey",
    Lines = "lines",
    Single = "single",
    MultiKey = "multi-key",
    MultiValue = "multi-value",
    Variables = "variables",
    CommonWords = "common-words",
    FrequentWords = "frequent-words",
});

impl Experiment {
    /// The tasks to evaluate, each once, in the order of the file.
    pub fn asked(&self) -> Vec<EvaluationTask> {
        let suits = if self.data.format == Format::Needles {
            EvaluationTask::Needle
        } else {
            EvaluationTask::Perplexity
        };
        let mut asked: Vec<EvaluationTask> = Vec::new();
        for &task in self.evaluation.tasks.as_deref().unwrap_or(&[suits]) {
            if !asked.contains(&task) {
                asked.push(task);
            }
        }
        asked
    }

    /// The format of `evaluation.path`: what the file says, else by its ending. Lines and rows are conversations where training read such.
    pub fn evaluated_format(&self) -> Format {
        let (given, trained) = (&self.evaluation, self.data.format);
        if let Some(format) = given.format {
            return format;
        }
        let of = |format| if trained == Format::Chat { Format::Chat } else { format };
        match given.path.as_deref().and_then(ending).as_deref() {
            Some("jsonl") => of(Format::Jsonl),
            Some("parquet") => of(Format::Parquet),
            Some("txt" | "md") => Format::Text,
            _ if trained.is_text() => trained,
            _ => Format::Text,
        }
    }

    /// The experiment with another text alone as its data, all of which is read.
    #[must_use]
    pub fn reading(&self, path: PathBuf, format: Format) -> Experiment {
        let mut own = self.clone();
        let format = Some(format);
        own.data.path =
            vec![TextSource { path, format, weight: None, column: None, pack: None, longer: None }];
        own
    }

    /// The lengths to evaluate, ascending, each once.
    pub fn evaluated_lengths(&self) -> Vec<usize> {
        let mut lengths = self.evaluation.lengths.clone().unwrap_or_default();
        if lengths.is_empty() {
            lengths.push(self.data.tokens);
        }
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// The number of targets at the end of every window.
    pub fn evaluated_targets(&self) -> usize {
        let shortest = self.evaluated_lengths()[0];
        self.evaluation.targets.unwrap_or_else(|| TARGETS.min(shortest.div_ceil(2)))
    }
}

/// The problem of a format of nothing.
fn idle_format(experiment: &Experiment) -> Option<Problem> {
    let Evaluation { path, format, .. } = &experiment.evaluation;
    let is_idle = format.is_some() && path.is_none();
    // Where a path is written, it may be otherwise for once.
    (is_idle && !experiment.places.contains("evaluation.path")).then(|| {
        let problem = unused(experiment, "evaluation.format", "there is no `evaluation.path`");
        problem
            .hint("remove it, or set `evaluation.path`; the format of `data.path` is `data.format`")
    })
}

/// Broken rules between tasks, lengths and targets.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let (places, lengths) = (&experiment.places, experiment.evaluated_lengths());
    let (shortest, targets) = (lengths[0], experiment.evaluated_targets());
    let mut problems = Vec::new();
    let asked = experiment.asked();
    if asked.is_empty() {
        let message = "nothing is asked";
        let hint = "list some, or remove `tasks`";
        problems.push(places.problem("evaluation.tasks", message).hint(hint));
    }
    problems.extend(idle_format(experiment));
    let needles = experiment.data.format == Format::Needles;
    if let Some(other) = asked.iter().find(|task| needles && **task != EvaluationTask::Needle) {
        let message = format!("`{}` is of texts, but `format: needles` has none", other.word());
        let hint = "ask `needle` alone";
        problems.push(places.problem("evaluation.tasks", message).hint(hint));
    }
    if targets > shortest {
        let message = format!("{targets} targets, but the shortest length is {shortest} tokens");
        let hint = format!("at most {shortest}, or longer `evaluation.lengths`");
        problems.push(places.problem("evaluation.targets", message).hint(hint));
    }
    let against = experiment.evaluation.against.unwrap_or(shortest);
    if !lengths.contains(&against) {
        let message = format!("{against} tokens are not among the lengths that are evaluated");
        let listed: Vec<_> = lengths.iter().map(usize::to_string).collect();
        let hint = format!("one of {}", listed.join(", "));
        problems.push(places.problem("evaluation.against", message).hint(hint));
    }
    problems
}
