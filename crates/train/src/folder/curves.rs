//! TensorBoard: the values of `metrics.jsonl`, named so that losses come first, the run's settings beside those of other runs, and the
//! least, mean and most of values that every rank has.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use annulus_experiment::{Experiment, tags};
use annulus_tensorboard::{Category, Chart, Setting, Writer, remove};

use crate::folder::manifest::Manifest;
use crate::sink::{Sink, Value};

/// How long events may wait in memory before they are written.
const PATIENCE: Duration = Duration::from_secs(2);

/// The page "Custom Scalars": titles of charts, and their tags of `metrics.jsonl`.
const LAYOUT: [(&str, &[(&str, &[&str])]); 6] = [
    ("loss", &[("loss", &[tags::TRAIN_LOSS, tags::EVALUATE_LOSS])]),
    ("learning rate", &[("learning rate", &[tags::TRAIN_LR])]),
    ("gradient norm", &[("gradient norm", &[tags::TRAIN_GRAD_NORM])]),
    (
        "speed",
        &[
            ("tokens per second", &[tags::SPEED_TOKENS_PER_SECOND]),
            ("model FLOPs utilisation", &[tags::SPEED_MFU]),
            ("TFLOP per second", &[tags::SPEED_TFLOPS]),
        ],
    ),
    (
        "memory",
        &[
            ("bytes at the peak", &[tags::MEMORY_PEAK]),
            ("bytes of activations", &[tags::MEMORY_ACTIVATIONS]),
            ("bytes of keys and values", &[tags::MEMORY_KEY_VALUE]),
        ],
    ),
    (
        "communication",
        &[
            ("bytes sent", &[tags::COMM_BYTES]),
            ("share hidden behind compute", &[tags::COMM_OVERLAP]),
        ],
    ),
];

/// What the page "Custom Scalars" has in addition for runs over several processes.
const OF_PROCESSES: (&str, &[(&str, &[&str])]) = (
    "processes",
    &[
        ("standard deviations from the mean rank, by host", &[tags::STRAGGLER_HOST]),
        ("standard deviations from the mean rank", &[tags::STRAGGLER_RANK]),
        ("seconds of waiting within a host", &[tags::WITHIN_HOST_WAITING]),
        ("seconds of waiting between hosts", &[tags::BETWEEN_HOSTS_WAITING]),
        ("bytes within a host", &[tags::WITHIN_HOST_BYTES]),
        ("bytes between hosts", &[tags::BETWEEN_HOSTS_BYTES]),
    ],
);

/// Writes a TensorBoard event file.
#[derive(Debug)]
pub(crate) struct Curves {
    writer: Writer,
    flushed: Instant,
    /// Whether every rank also has a curve of its own.
    ranks: bool,
    /// Tags whose values have differed over ranks.
    uneven: BTreeSet<String>,
}

impl Curves {
    /// A new event file in `folder`. `resumed`: the step after which the run goes on; `None`: it begins, and what an earlier attempt may have
    /// drawn is removed, since TensorBoard keeps the first settings that it reads. `ranks`: every rank also has a curve of its own.
    pub(crate) fn create(folder: &Path, resumed: Option<u64>, ranks: bool) -> io::Result<Curves> {
        if resumed.is_none() {
            remove(folder)?;
        }
        let writer = Writer::create(folder, resumed)?;
        Ok(Curves { writer, flushed: Instant::now(), ranks, uneven: BTreeSet::new() })
    }

    /// Writes once what the run is: its experiment `text`, resolved, a row of settings in the table of runs, and the order of its charts.
    /// `parameters` counts elements.
    pub(crate) fn begin(
        &mut self,
        experiment: &Experiment,
        text: &str,
        manifest: &Manifest,
        parameters: u64,
    ) -> io::Result<()> {
        self.writer.layout(&layout(manifest.hosts().is_some()))?;
        let settings = settings(experiment, manifest, parameters);
        self.writer.hyperparameters(&settings, &[tags::TRAIN_LOSS, tags::EVALUATE_LOSS])?;
        self.text("config", text)?;
        self.text("manifest", &manifest.text())
    }

    /// Writes the order of charts again if the run began without several processes and now has them: TensorBoard takes the last layout.
    pub(crate) fn go_on(&mut self, manifest: &Manifest) -> io::Result<()> {
        if manifest.was_of_threads() { self.writer.layout(&layout(true)) } else { Ok(()) }
    }

    /// Writes a text that is shown verbatim.
    fn text(&mut self, tag: &str, text: &str) -> io::Result<()> {
        self.writer.text(0, tag, &format!("```\n{text}\n```"))
    }

    /// Draws the least and mean of all ranks, below the most; if asked for, also every rank's value.
    fn of_ranks(&mut self, step: u64, tag: &str, values: &[f64]) -> io::Result<()> {
        let over = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick);
        let (least, most) = (over(f64::min), over(f64::max));
        if least != most && !self.uneven.contains(tag) {
            self.uneven.insert(tag.to_owned());
        }
        if let Some(least) = least.filter(|_| self.uneven.contains(tag)) {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            self.writer.scalar(step, &format!("{tag}/least"), least)?;
            self.writer.scalar(step, &format!("{tag}/mean"), mean)?;
        }
        for (rank, &value) in values.iter().enumerate().filter(|_| self.ranks) {
            self.writer.scalar(step, &format!("{tag}/rank {rank}"), value)?;
        }
        Ok(())
    }
}

impl Sink for Curves {
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()> {
        for (tag, value) in values {
            let tag = shown(tag);
            self.writer.scalar(step, &tag, value.number())?;
            let ranks = value.ranks();
            if ranks.len() > 1 {
                self.of_ranks(step, &tag, &ranks)?;
            }
        }
        if self.flushed.elapsed() > PATIENCE { self.flush() } else { Ok(()) }
    }
    fn flush(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        self.writer.flush()
    }
}

/// The name of a curve. TensorBoard sorts groups, and curves in a group, by name, and opens the first two groups: losses keep their names,
/// `evaluate/loss` and `train/loss`, and groups that would come before them are renamed to come after. (`train_comm` would not do:
/// TensorBoard treats an underscore as a slash.)
fn shown(tag: &str) -> String {
    match tag.split_once('/') {
        Some((group @ ("evaluate" | "train"), name)) if name < "loss" => {
            format!("{group}/more/{name}")
        }
        Some(("evaluate" | "train", _)) => tag.to_owned(),
        _ => format!("training_{tag}"),
    }
}

/// The curves of a tag, or of the tags that begin with it, as a regular expression that matches from the start of a name. A value by rank
/// has up to three curves.
fn pattern(tag: &str) -> String {
    let ending = match tag {
        tags::STRAGGLER_HOST => "[^/]*",
        tags::STRAGGLER_RANK => "[0-9]*",
        _ => "",
    };
    format!("{}{ending}(/least|/mean)?$", shown(tag))
}

/// The charts of "Custom Scalars"; `processes`: of a run over several.
fn layout(processes: bool) -> Vec<Category> {
    let chart = |(title, tags): &(&str, &[&str])| Chart {
        title: (*title).to_owned(),
        tags: tags.iter().map(|tag| pattern(tag)).collect(),
    };
    let category = |(title, charts): (&str, &[(&str, &[&str])])| Category {
        title: title.to_owned(),
        charts: charts.iter().map(chart).collect(),
    };
    let more = processes.then_some(OF_PROCESSES);
    LAYOUT.into_iter().chain(more).map(category).collect()
}

/// The settings in which runs usually differ, for the table of runs.
fn settings(
    experiment: &Experiment,
    manifest: &Manifest,
    parameters: u64,
) -> [(&'static str, Setting); 8] {
    let number = |count: u64| Setting::Number(count as f64);
    let word = |word: &str| Setting::Word(word.to_owned());
    [
        ("parameters", number(parameters)),
        ("ranks", number(manifest.ranks() as u64)),
        ("strategy", word(manifest.strategy())),
        ("tokens", number(experiment.data.tokens as u64)),
        ("learning rate", Setting::Number(experiment.optimizer.learning_rate)),
        ("batch", number(experiment.data.batch as u64)),
        ("dtype", word(experiment.model.dtype.word())),
        ("seed", number(experiment.seed)),
    ]
}

#[cfg(test)]
mod tests {
    use annulus_comm::RankHosts;
    use annulus_tensorboard::{Payload, read};

    use super::*;
    use crate::folder::manifest::RunStart;
    use crate::step::measure::hosts::{HostCosts, Spent};

    #[test]
    fn losses_are_first_by_name() {
        let mut tags = ["comm/bytes", "evaluate/accuracy", "evaluate/loss", "memory/peak"].to_vec();
        tags.extend(["speed/mfu", "train/grad_norm", "train/loss", "train/lr"]);
        let mut names: Vec<String> = tags.into_iter().map(shown).collect();
        names.sort();
        let losses = ["evaluate/loss", "evaluate/more/accuracy", "train/loss", "train/lr"];
        let others = ["train/more/grad_norm", "training_comm/bytes", "training_memory/peak"];
        assert_eq!(names, [&losses[..], &others[..], &["training_speed/mfu"]].concat());
    }

    /// Names and values that are drawn of two steps; in the first all ranks have equal values.
    fn drawn(ranks: bool) -> Vec<(u64, String, f32)> {
        let folder = tempfile::tempdir().unwrap();
        let mut curves = Curves::create(folder.path(), None, ranks).unwrap();
        for (step, counts) in [(1, [4, 4, 4]), (2, [2, 3, 7]), (3, [5, 5, 5])] {
            curves.record(step, &[("memory/peak", Value::PerRank(&counts))]).unwrap();
        }
        curves.flush().unwrap();
        let events = read(curves.writer.path()).unwrap();
        let scalar = |event: annulus_tensorboard::Event| match event.payload {
            Payload::Scalar { tag, value } => Some((event.step, tag, value)),
            _ => None,
        };
        events.into_iter().filter_map(scalar).collect()
    }

    #[test]
    fn what_is_drawn_of_processes_is_logged() {
        let hosts: Vec<String> = ["left", "right"].map(str::to_owned).into();
        let hosts = HostCosts::of(&[Spent::default(); 2], &RankHosts::new(hosts, 2));
        let logged: Vec<String> = hosts.values().map(|(tag, _)| shown(tag)).collect();
        let layout = layout(true);
        let charts = &layout.last().unwrap().charts;
        assert_eq!(charts.len(), 6);
        for tag in charts.iter().flat_map(|chart| &chart.tags) {
            let begins = tag.split(['[', '(']).next().unwrap();
            assert!(logged.iter().any(|name| name.starts_with(begins)), "{tag}: {logged:?}");
        }
        assert_eq!(super::layout(false).len() + 1, layout.len());
    }

    /// An attempt of a run, over several processes or not.
    fn attempt(processes: bool) -> RunStart {
        let process = serde_json::json!({"host": "left", "ranks": [0, 1]});
        let processes = if processes { vec![process] } else { Vec::new() };
        let attempt = serde_json::json!({"start": 1, "end": null, "ending": null, "resumed_from": null, "ranks": 2, "strategy": "ring", "processes": processes});
        serde_json::from_value(attempt).unwrap()
    }

    #[test]
    fn a_run_that_began_as_threads_is_laid_out_anew_over_processes() {
        for (attempts, written) in [
            (&[false, false][..], false),
            (&[false, true], true),
            (&[false, true, true], true),
            (&[true, true], false),
            (&[false, true, false], false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut curves = Curves::create(folder.path(), Some(3), false).unwrap();
            let mut manifest = Manifest::new(1, "", String::new(), String::new());
            manifest.attempts = attempts.iter().map(|processes| attempt(*processes)).collect();
            curves.go_on(&manifest).unwrap();
            curves.flush().unwrap();
            let events = read(curves.writer.path()).unwrap();
            let is_layout = |payload: &Payload| matches!(payload, Payload::Plugin { plugin, .. } if plugin == "custom_scalars");
            let found = events.iter().any(|event| is_layout(&event.payload));
            assert_eq!(found, written, "{attempts:?}");
        }
    }

    #[test]
    fn what_ranks_differ_in_has_three_curves_and_on_demand_one_each() {
        let few = drawn(false);
        let of = |step, name: &str, value| (step, format!("training_memory/peak{name}"), value);
        let wanted = [
            of(1, "", 4.0),
            of(2, "", 7.0),
            of(2, "/least", 2.0),
            of(2, "/mean", 4.0),
            of(3, "", 5.0),
            of(3, "/least", 5.0),
            of(3, "/mean", 5.0),
        ];
        assert_eq!(few, wanted);
        let all = drawn(true);
        assert_eq!(all.len(), wanted.len() + 9);
        assert!(all.contains(&of(2, "/rank 2", 7.0)), "{all:?}");
    }
}
