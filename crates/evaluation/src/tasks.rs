//! Tasks on long texts: how likely the right answer is, and whether the model would generate it.
//!
//! The answer is fed token by token: a token is right if it is the most likely one after the right tokens before it. All tokens are right
//! exactly where greedy decoding generates the answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use annulus_data::{Question, Task, needle};
use annulus_experiment::{EvaluationTask, Format};
use annulus_train::{Result, TrainError, Verdict, judge};
use serde::{Deserialize, Serialize};

use crate::statistics::{Mean, Rate};
use crate::{Progress, Subject};

/// The results of all retrieval tasks, by task, length and depth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskResults {
    /// The experiment's name.
    pub name: String,
    /// Where the weights were read from.
    pub weights: String,
    /// The number of steps that the weights were trained for.
    pub step: u64,
    /// The number of ranks that shared a sequence.
    pub ranks: usize,
    /// Results by task, length and depth.
    pub cells: Vec<Cell>,
}

/// The questions of one task at one length and depth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The name of the task.
    pub task: String,
    /// Input tokens of the sequences.
    pub tokens: usize,
    /// Where the fact lies, from 0, the beginning, to 1; `None`: anywhere.
    pub depth: Option<f64>,
    /// The rate of answers of which every token is right.
    pub right: Rate,
    /// The fraction of an answer's items that are found, mean and error over questions.
    pub parts: Mean,
    /// Negative log-likelihood of an answer's token in nats, mean and error over questions.
    pub loss: Mean,
    /// The answer to each question.
    pub answers: Vec<Answer>,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Input tokens of prompt and answer.
    pub tokens: usize,
    /// The expected answer.
    pub wanted: String,
    /// The most likely tokens, each after the right ones before it.
    pub said: String,
    /// Whether all tokens are right.
    pub right: bool,
    /// The fraction of a list's items that occur anywhere in the answer, as RULER counts (2404.06654); of other answers 1 or 0.
    pub parts: f64,
    /// Mean negative log-likelihood of the expected tokens, in nats.
    pub loss: f64,
}

/// Gives `subject` all tasks of its experiment's `evaluation` except perplexity, at every length and depth; `None` without such tasks.
///
/// # Errors
/// A question that does not fit into a length, a length that cannot be split.
pub fn tasks(subject: &Subject, progress: Progress<'_>) -> Result<Option<TaskResults>> {
    let experiment = &subject.plan.experiment;
    let mut cells = Vec::new();
    for asked in experiment.asked() {
        let Some(task) = Task::from_name(asked.word()) else {
            debug_assert_eq!(asked, EvaluationTask::Perplexity);
            continue;
        };
        for &tokens in &experiment.evaluated_lengths() {
            cells.extend(ask(subject, task, tokens, progress)?);
        }
    }
    Ok(Some(TaskResults {
        name: experiment.name.clone(),
        weights: subject.folder.display().to_string(),
        step: subject.step,
        ranks: experiment.mesh.sequence,
        cells,
    })
    .filter(|found| !found.cells.is_empty()))
}

/// The cells of one task at one length.
fn ask(subject: &Subject, task: Task, tokens: usize, progress: Progress<'_>) -> Result<Vec<Cell>> {
    let asked = &subject.plan.experiment.evaluation;
    let depths = depths(task, asked.depths);
    let all = depths.iter().flat_map(|&depth| (0..asked.samples as u64).map(move |s| (depth, s)));
    let (setup, questions) = subject.shared(|| {
        let questions = all
            .map(|(depth, sample)| question(subject, task, tokens, depth.unwrap_or(0.5), sample));
        let questions = questions.collect::<Result<Vec<Question>>>()?;
        Ok((subject.setup(tokens)?, questions))
    })?;
    let (what, done) = (format!("{} in {tokens} tokens", task.name()), AtomicUsize::new(0));
    let told = || progress(&what, done.fetch_add(1, Ordering::Relaxed) + 1, questions.len());
    let sequence = |index: usize| Ok(questions[index].sequence(tokens));
    let verdicts = judge(&setup, &subject.weights, questions.len(), &sequence, &told)?;
    let answers: Vec<Answer> = subject.shared(|| {
        let pairs = questions.iter().zip(&verdicts);
        let judged = |(question, verdicts): (&Question, &Vec<Verdict>)| {
            let Question { answer, parts, .. } = question;
            let expected = Expected { tokens: question.tokens(), wanted: answer, parts };
            expected.judged(subject, verdicts)
        };
        pairs.map(judged).collect()
    })?;
    let cells = answers.chunks(asked.samples).zip(depths);
    Ok(cells.map(|(answers, depth)| cell(task, tokens, depth, answers)).collect())
}

/// The depths of a task; `None`: anywhere.
fn depths(task: Task, count: usize) -> Vec<Option<f64>> {
    if !task.has_depth() {
        return vec![None];
    }
    let last = (count - 1).max(1) as f64;
    (0..count).map(|index| Some(index as f64 / last)).collect()
}

fn question(
    subject: &Subject,
    task: Task,
    tokens: usize,
    depth: f64,
    sample: u64,
) -> Result<Question> {
    let experiment = &subject.plan.experiment;
    if experiment.data.format == Format::Needles {
        return Ok(needle(tokens, depth, sample, experiment.seed)?);
    }
    let tokenizer = subject.tokenizer()?;
    let question = task.question(tokens, depth, sample, experiment.seed, tokenizer)?;
    let begin = tokenizer.before();
    let begins = question.prompt.iter().filter(|id| begin.contains(id)).count();
    if begins != begin.len() {
        return Err(TrainError::configuration(
            format!("a text has {begins} tokens that begin one, expected {}", begin.len()),
            "use the tokenizer that came with the model",
        ));
    }
    Ok(question)
}

/// The answer that is expected, by its ids.
pub(crate) struct Expected<'a> {
    /// Input tokens of prompt and answer.
    pub(crate) tokens: usize,
    pub(crate) wanted: &'a [u32],
    /// The items of a list; none: the answer is not a list.
    pub(crate) parts: &'a [String],
}

impl Expected<'_> {
    /// The answer that `verdicts` on the expected tokens are.
    pub(crate) fn judged(&self, subject: &Subject, verdicts: &[Verdict]) -> Result<Answer> {
        let said: Vec<u32> = verdicts.iter().map(|verdict| verdict.predicted).collect();
        let loss = verdicts.iter().map(|verdict| verdict.loss).sum::<f64>() / verdicts.len() as f64;
        let text = |ids: &[u32]| match subject.plan.experiment.data.format {
            // The ids of this task are not text.
            Format::Needles => Ok(format!("{ids:?}")),
            _ => Ok::<_, TrainError>(subject.tokenizer()?.decode(ids)?),
        };
        let (right, said) = (said == self.wanted, text(&said)?);
        Ok(Answer {
            tokens: self.tokens,
            wanted: text(self.wanted)?,
            parts: parts(self.parts, &said).unwrap_or(f64::from(u8::from(right))),
            said,
            right,
            loss,
        })
    }
}

/// The fraction of a list's items that occur in `said`; `None`: there is no list.
fn parts(items: &[String], said: &str) -> Option<f64> {
    let found = items.iter().filter(|part| said.contains(part.as_str())).count();
    (!items.is_empty()).then(|| found as f64 / items.len() as f64)
}

fn cell(task: Task, tokens: usize, depth: Option<f64>, answers: &[Answer]) -> Cell {
    let right = answers.iter().filter(|answer| answer.right).count();
    let mean = |of: fn(&Answer) -> f64| Mean::of(&answers.iter().map(of).collect::<Vec<_>>());
    Cell {
        task: task.name().to_owned(),
        tokens,
        depth,
        right: Rate::of(right, answers.len()),
        parts: mean(|answer| answer.parts),
        loss: mean(|answer| answer.loss),
        answers: answers.to_vec(),
    }
}

impl TaskResults {
    /// The names of the tasks, in order.
    pub fn tasks(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.cells.iter().map(|cell| cell.task.as_str()).collect();
        names.dedup();
        names
    }

    /// The lengths, ascending.
    pub fn lengths(&self) -> Vec<usize> {
        let mut lengths: Vec<usize> = self.cells.iter().map(|cell| cell.tokens).collect();
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// The rate of right answers to a task at one length, over all depths.
    pub fn at(&self, task: &str, tokens: usize) -> Rate {
        let cells = self.cells.iter().filter(|cell| cell.task == task && cell.tokens == tokens);
        let (right, of) =
            cells.fold((0, 0), |(right, of), cell| (right + cell.right.right, of + cell.right.of));
        Rate::of(right, of)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn of_a_list_every_item_counts_wherever_it_is() {
        let parts = ["alpha", "beta", "gamma", "delta"].map(str::to_owned).to_vec();
        assert_eq!(super::parts(&parts, " delta, alpha; alpha"), Some(0.5));
        assert_eq!(super::parts(&parts, " alpha, beta, gamma, delta"), Some(1.0));
        assert_eq!(super::parts(&parts, ""), Some(0.0));
        assert_eq!(super::parts(&[], "alpha"), None);
    }
}
