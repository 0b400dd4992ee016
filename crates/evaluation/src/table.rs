//! A table of many runs: a row for runs that differ only in their seed, with mean results and whether rows differ by more than seeds
//! explain.

mod seeds;

use std::collections::BTreeSet;

use annulus_experiment::tags::{EVALUATE_LOSS, TRAIN_LOSS};
use annulus_experiment::{Experiment, varying};
use annulus_train::RunSummary;
use serde::Serialize;

use self::seeds::against;
pub use self::seeds::{ComparisonToBest, OverSeeds, Test};

/// Keys without influence on results: runs that differ only in these share a row.
const ALIKE: [&str; 2] = ["seed", "name"];
/// What is shown for a key that a run does not have.
const ABSENT: &str = "-";

/// The column that says which runs are forks, where only some are.
const FORKED: &str = "forked";

/// A table of many runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// The keys that differ between rows.
    pub keys: Vec<String>,
    /// The loss that rows are compared by: `evaluate/loss` where all have it, else `train/loss`; `None`: no row has any.
    pub compared_by: Option<&'static str>,
    /// The index of the row with the least mean loss; `None`: no row has any, or rows have evaluated different texts.
    pub best: Option<usize>,
    /// The rows, in the order of their first runs.
    pub rows: Vec<Row>,
}

/// Runs that differ only in their seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The row's values of [`Table::keys`].
    pub values: Vec<String>,
    /// The number of runs that there should be, without those that repeat another.
    pub runs: usize,
    /// The seeds of the finished runs, which alone are counted.
    pub seeds: Vec<u64>,
    /// The training loss of the last logged step, in nats per token.
    pub train_loss: Option<OverSeeds>,
    /// The loss of held-out text after the last evaluation, in nats per token.
    pub evaluate_loss: Option<OverSeeds>,
    /// Tokens per second, the median over logged steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<OverSeeds>,
    /// The index of the row with the least mean loss of those that evaluated the same text, which this row is compared with; `None`: no
    /// other row did, or the row has no loss.
    pub best: Option<usize>,
    /// The comparison with that best row; `None` for that row itself.
    pub against_best: Option<ComparisonToBest>,
}

/// A row before anything is computed: the values of the keys, and its runs, `None` for runs that did not start.
pub type Group = (Vec<String>, Vec<Option<RunSummary>>);

type Of = fn(&RunSummary) -> Option<f64>;

/// Groups runs whose resolved files differ only in their seed and which all are forks or none, ordered by their first runs: the keys in which
/// groups differ, and the groups.
pub fn groups(runs: Vec<RunSummary>) -> (Vec<String>, Vec<Group>) {
    let experiments: Vec<Experiment> = runs.iter().map(|run| run.experiment.clone()).collect();
    let mut differing = varying(&experiments);
    differing.retain(|key| !ALIKE.contains(&key.key.as_str()));
    let are_told_apart = runs.iter().any(|run| run.is_fork != runs[0].is_fork);
    let mut groups: Vec<Group> = Vec::new();
    for (index, run) in runs.into_iter().enumerate() {
        let value = |value: Option<String>| value.unwrap_or_else(|| ABSENT.to_owned());
        let forked = are_told_apart.then(|| value(run.is_fork.then(|| "yes".to_owned())));
        let values = differing.iter().map(|key| value(key.values[index].clone()));
        let values: Vec<String> = values.chain(forked).collect();
        match groups.iter_mut().find(|(known, _)| *known == values) {
            Some((_, runs)) => runs.push(Some(run)),
            None => groups.push((values, vec![Some(run)])),
        }
    }
    let keys = differing.into_iter().map(|key| key.key);
    (keys.chain(are_told_apart.then(|| FORKED.to_owned())).collect(), groups)
}

/// The table of `groups` of runs, with or without times.
pub fn table(keys: Vec<String>, groups: &[Group], times: bool) -> Table {
    let finished: Vec<Vec<&RunSummary>> = groups.iter().map(|(_, runs)| finished(runs)).collect();
    let all: Vec<&RunSummary> = finished.iter().flatten().copied().collect();
    let has = |of: Of| !all.is_empty() && all.iter().all(|run| of(run).is_some());
    let by: Option<(&'static str, Of)> = match (has(EVALUATED), has(TRAINED)) {
        (true, _) => Some((EVALUATE_LOSS, EVALUATED)),
        (false, true) => Some((TRAIN_LOSS, TRAINED)),
        (false, false) => None,
    };
    let mut rows: Vec<Row> =
        groups.iter().zip(&finished).map(|(group, runs)| row(group, runs, times)).collect();
    let mut best = None;
    if let Some((tag, of)) = by {
        let texts = if tag == EVALUATE_LOSS { of_texts(&finished) } else { of_one(&finished) };
        compare(&mut rows, &finished, of, &texts);
        best = rows.iter().find_map(|row| row.best).filter(|_| texts.len() == 1);
    }
    Table { keys, compared_by: by.map(|(tag, _)| tag), best, rows }
}

/// Compares each of `rows`, whose finished runs these are, with the best of those that evaluated the same text, by the values `of` runs.
fn compare(rows: &mut [Row], finished: &[Vec<&RunSummary>], of: Of, texts: &[Vec<usize>]) {
    let mean = |row: &usize| {
        let found = OverSeeds::of(&values(&finished[*row], of));
        found.map_or(f64::INFINITY, |found| found.mean)
    };
    // Of all texts together: they are one table, in which any pair may be told to differ.
    let pairs = texts.iter().map(|rows| rows.len() * (rows.len() - 1) / 2).sum();
    let alone = |rows: &&Vec<usize>| texts.len() > 1 && rows.len() == 1;
    for own in texts.iter().filter(|rows| !alone(rows)) {
        let best = own.iter().copied().min_by(|a, b| mean(a).total_cmp(&mean(b)));
        for &index in own {
            rows[index].best = best;
            let other = best.filter(|best| *best != index);
            rows[index].against_best = other.and_then(|best| {
                against(&by_seed(&finished[index], of), &by_seed(&finished[best], of), pairs)
            });
        }
    }
}

/// The rows with finished runs, as if all had evaluated the same text; no list where there are none.
fn of_one(finished: &[Vec<&RunSummary>]) -> Vec<Vec<usize>> {
    let all: Vec<usize> = (0..finished.len()).filter(|row| !finished[*row].is_empty()).collect();
    Some(all).filter(|all| !all.is_empty()).into_iter().collect()
}

/// The rows with finished runs by the text that these evaluated. A seed's effect cancels where rows are compared seed by seed, but not that
/// of another text, which would count as one of the rows' keys. Rows whose runs do not say their text have that of the others, if it is one.
fn of_texts(finished: &[Vec<&RunSummary>]) -> Vec<Vec<usize>> {
    let mut texts: Vec<(BTreeSet<&str>, Vec<usize>)> = Vec::new();
    for row in of_one(finished).into_iter().flatten() {
        let own: BTreeSet<&str> =
            finished[row].iter().filter_map(|run| run.held_out.as_deref()).collect();
        match texts.iter_mut().find(|(text, _)| *text == own) {
            Some((_, rows)) => rows.push(row),
            None => texts.push((own, vec![row])),
        }
    }
    let told = texts.iter().filter(|(text, _)| !text.is_empty()).count();
    if told < 2 {
        return of_one(finished);
    }
    texts.into_iter().map(|(_, rows)| rows).collect()
}

const TRAINED: Of = |run| run.train_loss;
const EVALUATED: Of = |run| run.evaluation_loss;

/// Finished runs that are left out, each with the run before it that has the same file and seed.
pub fn repeated(groups: &[Group]) -> Vec<[&RunSummary; 2]> {
    groups.iter().flat_map(|(_, runs)| by_first(runs).1).collect()
}

/// Two finished runs with the same `data` and seed that read other data: the files were changed between them. Runs with different seeds
/// read different sequences of the same files, so of those nothing is known.
pub fn of_other_data(groups: &[Group]) -> Option<[&RunSummary; 2]> {
    let mut seen: Vec<&RunSummary> = Vec::new();
    for run in groups.iter().flat_map(|(_, runs)| finished(runs)).filter(|run| run.data.is_some()) {
        let is_alike = |other: &&RunSummary| {
            let [own, others] = [run, other].map(|run| &run.experiment);
            (own.seed, &own.data, &own.stages) == (others.seed, &others.data, &others.stages)
        };
        match seen.iter().find(|other| is_alike(other)) {
            Some(other) if other.data != run.data => return Some([other, run]),
            _ => seen.push(run),
        }
    }
    None
}

/// The finished runs of a row; of several with one seed, the first.
fn finished(runs: &[Option<RunSummary>]) -> Vec<&RunSummary> {
    by_first(runs).0
}

/// The finished runs, the first of every seed, and the others, each with the first of its seed.
fn by_first(runs: &[Option<RunSummary>]) -> (Vec<&RunSummary>, Vec<[&RunSummary; 2]>) {
    let (mut first, mut others): (Vec<&RunSummary>, Vec<[&RunSummary; 2]>) = Default::default();
    for run in runs.iter().flatten().filter(|run| run.is_finished) {
        match first.iter().find(|other| other.experiment.seed == run.experiment.seed) {
            Some(same) => others.push([same, run]),
            None => first.push(run),
        }
    }
    (first, others)
}

fn row((values_of_keys, runs): &Group, finished: &[&RunSummary], times: bool) -> Row {
    let over = |of: Of| {
        let values = values(finished, of);
        OverSeeds::of(&values).filter(|_| values.len() == finished.len())
    };
    Row {
        values: values_of_keys.clone(),
        runs: runs.len() - by_first(runs).1.len(),
        seeds: finished.iter().map(|run| run.experiment.seed).collect(),
        train_loss: over(TRAINED),
        evaluate_loss: over(EVALUATED),
        tokens_per_second: over(|run| run.tokens_per_second).filter(|_| times),
        best: None,
        against_best: None,
    }
}

fn values(runs: &[&RunSummary], of: Of) -> Vec<f64> {
    runs.iter().filter_map(|run| of(run)).collect()
}

fn by_seed(runs: &[&RunSummary], of: Of) -> Vec<(u64, f64)> {
    runs.iter().filter_map(|run| Some((run.experiment.seed, of(run)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use annulus_experiment::{Override, parse};

    use super::*;

    const SMALL: &str = "name: small
model: { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2 }
data: { path: a.txt, tokens: 16 }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 5 }
";

    /// A finished run of `SMALL` with these keys and losses.
    fn run(changes: &str, loss: f64) -> RunSummary {
        let changes: Vec<Override> = changes.split(' ').filter_map(Override::split).collect();
        RunSummary {
            data: Some("texts".to_owned()),
            held_out: Some("text".to_owned()),
            folder: PathBuf::from("run"),
            is_fork: false,
            experiment: parse("small.yaml", SMALL, &changes).unwrap(),
            is_finished: true,
            train_loss: Some(loss),
            evaluation_loss: Some(loss + 1.0),
            tokens_per_second: Some(100.0),
        }
    }

    fn of(runs: Vec<RunSummary>) -> Table {
        let (keys, groups) = groups(runs);
        table(keys, &groups, true)
    }

    /// What a fork has learned is not that of its own seed alone.
    #[test]
    fn forks_are_no_seeds_of_a_run_from_scratch() {
        let fork = |changes, loss| RunSummary { is_fork: true, ..run(changes, loss) };
        let found = of(vec![run("seed=1", 3.0), fork("seed=2", 1.0), fork("seed=3", 1.5)]);
        assert_eq!(found.keys, ["forked"]);
        assert_eq!(found.rows.iter().map(|row| &row.values[0]).collect::<Vec<_>>(), ["-", "yes"]);
        assert_eq!(found.rows[1].seeds, [2, 3]);
        assert!(of(vec![fork("seed=2", 1.0), fork("seed=3", 1.5)]).keys.is_empty());
    }

    #[test]
    fn runs_that_differ_in_seed_name_and_folder_are_a_row() {
        let found = of(vec![
            run("seed=1 name=a output=x", 2.0),
            run("seed=1 data.tokens=32", 1.0),
            run("seed=2 name=b output=y", 4.0),
            run("seed=2 data.tokens=32", 1.5),
        ]);
        assert_eq!(found.keys, ["data.tokens"]);
        assert_eq!(found.rows.iter().map(|row| &row.values[0]).collect::<Vec<_>>(), ["16", "32"]);
        assert_eq!(found.rows[0].seeds, [1, 2]);
        let loss = found.rows[0].train_loss.clone().unwrap();
        assert_eq!((loss.mean, loss.values), (3.0, vec![2.0, 4.0]));
        assert_eq!((found.compared_by, found.best), (Some("evaluate/loss"), Some(1)));
        assert_eq!(found.rows[1].against_best, None);
        let against = found.rows[0].against_best.unwrap();
        assert_eq!((against.difference, against.test), (1.75, Test::Paired));
    }

    #[test]
    fn only_finished_runs_count_and_a_seed_counts_once() {
        let unfinished = RunSummary { is_finished: false, ..run("seed=3", 9.0) };
        let runs = vec![run("seed=1", 2.0), unfinished, run("seed=1 output=again", 2.0)];
        let (_, grouped) = groups(runs.clone());
        let again = repeated(&grouped);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0][1].experiment.output, PathBuf::from("again"));
        let found = of(runs);
        assert_eq!(
            (found.rows.len(), found.rows[0].runs, &found.rows[0].seeds[..]),
            (1, 2, &[1][..])
        );
        assert_eq!(found.rows[0].train_loss.clone().unwrap().half, None);
        let (keys, mut groups) = groups(vec![run("seed=1", 2.0)]);
        groups[0].1 = vec![None];
        let none = table(keys, &groups, true);
        assert_eq!(
            (none.compared_by, none.best, none.rows[0].train_loss.clone()),
            (None, None, None)
        );
    }

    #[test]
    fn files_that_changed_between_runs_are_noticed() {
        let of_data =
            |data: &str, changes| RunSummary { data: Some(data.to_owned()), ..run(changes, 2.0) };
        let mut runs = vec![
            run("seed=1", 2.0),
            of_data("seed 2", "seed=2"),
            of_data("32 tokens", "seed=1 data.tokens=32"),
            run("seed=1 optimizer.learning_rate=1e-2", 3.0),
        ];
        assert!(of_other_data(&groups(runs.clone()).1).is_none());
        runs.push(of_data("changed", "seed=1 optimizer.learning_rate=1e-4"));
        let (_, groups) = groups(runs);
        let found = of_other_data(&groups).unwrap().map(|run| run.data.as_deref());
        assert!(found.contains(&Some("changed")) && found.contains(&Some("texts")), "{found:?}");
    }

    /// Three rows of three seeds, of which the first evaluated the text `short`, and the others these.
    fn evaluating(long: Option<&str>, rates: Option<&str>) -> Vec<RunSummary> {
        let evaluated = |text: Option<&str>, changes: String, loss| RunSummary {
            held_out: text.map(str::to_owned),
            ..run(&changes, loss)
        };
        let of_seed = |seed: u64| {
            let (noise, own) = (seed as f64, format!("seed={seed}"));
            let (longer, faster) = ("data.tokens=32", "optimizer.learning_rate=1e-2");
            [
                evaluated(Some("short"), own.clone(), noise),
                evaluated(long, format!("{own} {longer}"), noise + 1.0),
                evaluated(rates, format!("{own} {faster}"), noise * 1.1 + 0.5),
            ]
        };
        (1..4).flat_map(of_seed).collect()
    }

    #[test]
    fn rows_are_compared_only_with_those_of_the_same_text() {
        let differ = |runs| {
            let found = of(runs);
            let larger = |row: &Row| row.against_best.and_then(|against| against.is_larger);
            (found.best, found.rows.iter().map(|row| (row.best, larger(row))).collect::<Vec<_>>())
        };
        let (long, short) = (Some("long"), Some("short"));
        // The text is the same for every seed, so that its difference is, too.
        let (best, same) = differ(evaluating(short, short));
        assert_eq!((best, same[1]), (Some(0), (Some(0), Some(true))));
        let (best, other) = differ(evaluating(long, short));
        assert_eq!(best, None);
        assert_eq!([other[0].0, other[1].0, other[2].0], [Some(0), None, Some(0)]);
        assert_eq!((other[1].1, other[2].1), (None, Some(true)));
        // Runs of earlier versions do not say what they evaluated.
        assert_eq!(differ(evaluating(None, None)), differ(evaluating(short, short)));
        assert_eq!(differ(evaluating(long, None)).0, None);
        // Of training losses each seed has its own text.
        let blind = evaluating(long, short).into_iter();
        let blind = blind.map(|run| RunSummary { evaluation_loss: None, ..run });
        assert_eq!(differ(blind.collect()).0, Some(0));
    }

    #[test]
    fn without_evaluations_the_training_loss_counts_and_times_can_be_left_out() {
        let blind = |changes, loss| RunSummary { evaluation_loss: None, ..run(changes, loss) };
        let runs = vec![blind("optimizer.learning_rate=1e-2", 3.0), blind("seed=0", 2.0)];
        let (keys, groups) = groups(runs);
        let found = table(keys, &groups, false);
        assert_eq!((found.compared_by, found.best), (Some("train/loss"), Some(1)));
        assert!(found.rows.iter().all(|row| row.tokens_per_second.is_none()));
        assert_eq!(found.rows[0].against_best.unwrap().difference, 1.0);
    }
}
