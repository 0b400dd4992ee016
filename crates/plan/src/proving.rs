//! The schedules of an experiment, proved for `annulus prove`: what holds, how much there was to prove, how long it took.

use std::time::Instant;

use annulus_experiment::Resolved;
use annulus_sequence::{
    Flaw, Pass, Positions, Proof, Schedule, moves_and_tiles, pairs_between, prove,
};
use annulus_text::{count, duration};
use annulus_yaml::Problems;
use serde_json::{Value, json};

use crate::{Plan, label};

/// What a proof guarantees, in words.
const HOLDS: &str = "nothing deadlocks, every visible pair of every head is computed exactly once, \
                     every result is reduced to its owner, every buffer is freed";

/// One schedule, its size, and its proof or first flaw.
#[derive(Clone, Debug)]
pub struct Proved {
    /// The layers of the schedule and their strategy; `None`: all layers are alike.
    pub layers: Option<String>,
    /// The schedule's pass, forward or backward.
    pub pass: Pass,
    /// Hops that every rank makes.
    pub hops: usize,
    /// Blocks that are sent, summed over ranks.
    pub moves: usize,
    /// Tiles that are computed, summed over ranks.
    pub tiles: usize,
    /// Visible (query, key) pairs that the tiles cover, counted per query head.
    pub pairs: u128,
    /// Seconds that the proof took.
    pub seconds: f64,
    /// The proof, or the first flaw found.
    pub outcome: Result<Proof, Flaw>,
}

/// All schedules of an experiment, with their proofs or flaws.
#[derive(Clone, Debug)]
pub struct Proving {
    /// The heading of the report: what the schedules are of.
    title: String,
    /// Every layer group's forward schedule, then its backward schedule.
    pub schedules: Vec<Proved>,
}

impl Proving {
    /// Makes and proves the schedules of an experiment that names its strategies.
    ///
    /// # Errors
    /// What is wrong with the experiment. A flaw in a schedule is a result, not an error.
    pub fn of(resolved: &Resolved) -> Result<Proving, Problems> {
        let plan = Plan::outline(resolved)?;
        let title = format!(
            "{}: {} of {} tokens as {} over {} ranks",
            plan.experiment.name,
            plan.strategies(label),
            plan.experiment.data.tokens,
            plan.experiment.layout(),
            plan.experiment.mesh.sequence,
        );
        let several = plan.groups.len() > 1;
        let mut schedules = Vec::new();
        for (group, draft) in plan.groups.iter().zip(&plan.drafts) {
            let layers = several.then(|| format!("{}: {}", group.title(), label(group.strategy)));
            let of_group = |schedule| Proved { layers: layers.clone(), ..Proved::of(schedule) };
            let forward = plan.forward(group, draft)?;
            schedules.extend([&forward, &draft.backward].map(of_group));
        }
        Ok(Proving { title, schedules })
    }

    /// Whether all schedules are proved.
    pub fn holds(&self) -> bool {
        self.schedules.iter().all(|proved| proved.outcome.is_ok())
    }

    /// The report for people: a line per schedule, and what was proved.
    pub fn to_text(&self) -> String {
        let mut above = &None;
        let lines = self.schedules.iter().map(|proved| {
            let layers = proved.layers.as_ref().filter(|_| *above != proved.layers);
            above = &proved.layers;
            let head = layers.map_or_else(String::new, |layers| format!(" {layers}\n"));
            head + &proved.to_text() + "\n"
        });
        let verdict = if self.holds() { format!("proved: {HOLDS}") } else { "NOT PROVED".into() };
        format!("{}\n{}{verdict}", self.title, lines.collect::<String>())
    }

    /// The report as JSON, for programs.
    pub fn to_json(&self) -> Value {
        let proved = |proved: &Proved| {
            let mut shown = json!({
                "pass": proved.pass.name(),
                "hops": proved.hops,
                "moves": proved.moves,
                "tiles": proved.tiles,
                "pairs": u64::try_from(proved.pairs).map_or(json!(proved.pairs as f64), Value::from),
                "seconds": proved.seconds,
                "flaw": proved.outcome.as_ref().err().map(Flaw::to_string),
            });
            if let Some(layers) = &proved.layers {
                shown["layers"] = json!(layers);
            }
            shown
        };
        let schedules: Vec<Value> = self.schedules.iter().map(proved).collect();
        json!({ "proved": self.holds(), "schedules": schedules })
    }
}

impl Proved {
    /// Proves one schedule.
    pub fn of(schedule: &Schedule) -> Proved {
        let start = Instant::now();
        let outcome = prove(schedule);
        let seconds = start.elapsed().as_secs_f64();
        let [moves, tiles] = moves_and_tiles(schedule);
        Proved {
            layers: None,
            pass: schedule.pass,
            hops: schedule.hops(),
            moves,
            tiles,
            pairs: match outcome {
                Ok(_) => visible(schedule),
                // A schedule with a flaw may compute other pairs.
                Err(_) => 0,
            },
            seconds,
            outcome,
        }
    }

    fn to_text(&self) -> String {
        let Proved { hops, moves, tiles, pairs, seconds, .. } = *self;
        let pass = self.pass.name();
        let found = match &self.outcome {
            Ok(_) => format!("{pairs} pairs, proved in {}", duration(seconds)),
            Err(flaw) => format!("flaw: {flaw}"),
        };
        let [hops, moves, tiles] =
            [(hops, "hop"), (moves, "move"), (tiles, "tile")].map(|(n, noun)| count(n, noun));
        format!("  {pass:<9} {hops}, {moves}, {tiles}, {found}")
    }
}

/// Visible pairs of a whole sequence, counted per query head: what a correct schedule computes.
fn visible(schedule: &Schedule) -> u128 {
    let all = Positions::all(schedule.positions.iter().map(Positions::tokens).sum());
    u128::from(pairs_between(&schedule.mask, &all, &all)) * schedule.heads.query as u128
}

#[cfg(test)]
mod tests {
    use annulus_sequence::{Heads, Mask, Strategy};

    use super::*;

    #[test]
    fn a_lost_message_is_named_and_nothing_is_called_proved() {
        let heads = Heads { query: 2, key_value: 1 };
        let split = Strategy::Ring.split(&Mask::causal(), 12, 3, heads).expect("it splits");
        let mut schedule = Strategy::Ring.forward(&split).expect("runs");
        let whole = Proved::of(&schedule);
        assert_eq!((whole.hops, whole.pairs), (3, 2 * 12 * 13 / 2));
        let mut ranks = schedule.listed();
        ranks[0][0].sends.clear();
        schedule.generator = std::sync::Arc::new(ranks);
        let proving =
            Proving { title: "a ring".into(), schedules: vec![whole, Proved::of(&schedule)] };
        assert!(!proving.holds());
        let text = proving.to_text();
        assert!(text.contains("flaw: rank 1, hop 0: ") && text.ends_with("NOT PROVED"), "{text}");
        let flaw = &proving.to_json()["schedules"][1]["flaw"];
        assert!(flaw.as_str().is_some_and(|flaw| flaw.contains("awaited from rank 0")), "{flaw}");
    }
}
