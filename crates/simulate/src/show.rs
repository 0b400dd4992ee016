//! The comparison of strategies as text, for people.

use annulus_plan::label;
use annulus_sequence::Strategy;
use annulus_text::{aligned, duration, size, stacked, wrapped};

use crate::table::offload_fits;
use crate::{Candidate, Choice, Cluster, Estimate, Hiding, Level, Link, Offloaded, Table};

/// Columns in order of importance: later ones stand below where a line has no room.
const HEAD: [&str; 10] = [
    "strategy",
    "step",
    "exposed",
    "uneven",
    "peak memory",
    "attn fwd",
    "attn bwd",
    "balance",
    "sent",
    "recompute",
];
/// What two of the columns are of.
const PER_LAYER: &str = "attn fwd, attn bwd: attention of one layer, forward and backward\n\n";
/// The number of columns, and of the fastest strategies, in a summary.
const FIRST: usize = 5;
const BEST: usize = 5;
/// The column at which a line's text begins, after its first word.
const INDENT: usize = 9;
/// The indent at which notes longer than a line continue.
const NOTE: usize = 4;
/// Bytes a second beyond any machine's memory: such a rate was measured on blocks that stayed in a cache.
const MEMORY: f64 = 1e12;

impl Choice {
    /// The tables of all strategies and the choice of `strategy: auto`, as text.
    pub fn to_text(&self) -> String {
        let tables = self.tables.iter().map(|table| self.table(table) + "\n");
        let tables = tables.collect::<String>() + PER_LAYER;
        let mut notes = self.refused();
        notes.extend(self.idle());
        // Threads of a process have no messages to hide.
        let links = self.hiding.iter().filter(|_| !self.cluster.helping);
        notes.extend(links.map(|hiding| {
            let Hiding { place, .. } = hiding;
            let [forward, backward] = [hiding.forward, hiding.backward].map(f64::ceil);
            format!(
                "  a ring's messages {place} hide behind computing from {forward} tokens per rank on, \
                 {backward} in backward"
            )
        }));
        notes.extend(self.answered().map(|(_, _, estimate)| {
            let summed = duration(estimate.gradient_sum);
            format!("  {summed} of each step sum gradients when backward is over, which is exposed")
        }));
        notes.extend(self.offloading());
        let answer = self.answer();
        // The answer's reasons are not repeated.
        notes.extend(self.why().into_iter().filter(|line| !answer.starts_with(line)));
        let (answer, notes) = (wrapped(&answer, INDENT), wrapped(&notes.join("\n"), NOTE));
        format!("{}\n\n{answer}{tables}{notes}\n", self.head())
    }

    /// A summary: the fastest strategies, and what `strategy: auto` takes.
    pub fn to_summary(&self) -> String {
        let mut text = format!("{}\n\n", self.head());
        for table in &self.tables {
            let ranking = table.ranking();
            let (first, others) = ranking.split_at(ranking.len().min(BEST));
            // The fastest need not fit.
            let taken = others.iter().filter(|(strategy, _)| table.chosen == Some(*strategy));
            let shown: Vec<_> = first.iter().chain(taken).collect();
            let more = ranking.len() - shown.len();
            let mut rows = vec![HEAD[..FIRST].iter().map(|head| (*head).to_owned()).collect()];
            rows.extend(shown.into_iter().map(|(strategy, estimate)| {
                let mut row = self.row(label(*strategy), estimate);
                row.truncate(FIRST);
                row
            }));
            text += &(self.over(table) + &aligned(&rows));
            if more > 0 {
                let others = format!(
                    "  and {more} others: under `choice` in the run's manifest.json; `annulus plan` of a run that has not begun \
                     shows all"
                );
                text += &(wrapped(&others, NOTE) + "\n");
            }
        }
        let taken = self.tables.iter().flat_map(|table| table.taken(&self.cluster));
        let taken = taken.filter(|line| !line.starts_with(' ')).collect::<Vec<_>>();
        text + &wrapped(&taken.join("\n"), NOTE) + "\n"
    }

    /// A remark on devices without a rank.
    fn idle(&self) -> Option<String> {
        let (ranks, devices) = (self.ranks, self.cluster.devices());
        (ranks < devices).then(|| {
            format!(
                "  {ranks} of the {devices} devices are used: `mesh.sequence={devices}` splits a sequence over \
                 all, `mesh.data` trains on several at once"
            )
        })
    }

    /// A remark on the wait for what is offloaded.
    fn offloading(&self) -> Option<String> {
        let (_, _, estimate) = self.answered()?;
        match estimate.offloaded {
            Offloaded::Nothing => None,
            Offloaded::Waits(seconds) => Some(format!(
                "  {} of each step wait for what is offloaded, which is exposed",
                duration(seconds)
            )),
            Offloaded::Untimed => Some(String::from(
                "  the step leaves out offloading: add the link's speed to the cluster's file, as in `offload: { bandwidth: 50GB/s }`",
            )),
        }
    }

    /// The head of the report: the experiment, and the cluster.
    fn head(&self) -> String {
        wrapped(&format!("{}\n{}", self.title, self.cluster.to_text()), INDENT)
    }

    /// A table of strategies, under the layers that it is for.
    fn table(&self, table: &Table) -> String {
        let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
        for Candidate { strategy, outcome } in &table.candidates {
            rows.extend(outcome.iter().map(|estimate| self.row(label(*strategy), estimate)));
        }
        self.over(table) + &stacked(&rows)
    }

    /// The layers that a table is for, where not all.
    fn over(&self, table: &Table) -> String {
        let over = self.layouts.get(self.taken).zip(table.layers.as_ref());
        over.map_or_else(String::new, |(shared, layers)| {
            let word = shared.sharded.word();
            format!("{layers}; over `layout: {word}`, a model of these layers alone\n")
        })
    }

    /// Why some strategies cannot run, each reason given once for all layers.
    fn refused(&self) -> Vec<String> {
        let mut refused: Vec<(Strategy, &String)> = Vec::new();
        for Candidate { strategy, outcome } in self.tables.iter().flat_map(|t| &t.candidates) {
            let said = refused.iter().any(|(other, _)| other == strategy);
            refused.extend(outcome.as_ref().err().filter(|_| !said).map(|why| (*strategy, why)));
        }
        let line = |(one, why)| format!("  `{}` cannot run: {why}", label(one));
        refused.into_iter().map(line).collect()
    }

    fn row(&self, name: String, estimate: &Estimate) -> Vec<String> {
        let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / estimate.step);
        let over = match (self.fits(estimate), offload_fits(estimate, &self.cluster)) {
            (true, _) => "",
            (_, true) => " does not fit",
            (_, false) => ", offload does not fit",
        };
        vec![
            name,
            duration(estimate.step),
            share(estimate.exposed),
            share(estimate.uneven),
            size(estimate.fullest()) + over,
            duration(estimate.forward),
            duration(estimate.backward),
            format!("{:.2}", estimate.balance),
            size(estimate.bytes),
            estimate.memory.recompute.word().to_owned(),
        ]
    }
}

impl Cluster {
    /// The link within a node: threads of a process exchange blocks through its memory.
    fn inside(&self) -> String {
        match self.helping {
            true if self.inside.bandwidth > MEMORY => "memory of this machine".to_owned(),
            true => format!("memory of this machine, {}", link(self.inside)),
            false => format!("{} inside a node", link(self.inside)),
        }
    }

    /// The cluster as text: devices, links and speeds, a line each.
    pub fn to_text(&self) -> String {
        let memory = self.memory.map_or_else(String::new, |bytes| format!(" of {}", size(bytes)));
        let whose = if self.shared { "node" } else { "device" };
        let between = match self.nodes {
            1 => String::new(),
            _ => format!(", {} between nodes per {whose}", link(self.between)),
        };
        let levels = self.levels.iter().map(|Level { name, devices, link: joined }| {
            let nodes = devices / self.devices_per_node;
            format!("\n         {} from {name} to {name} of {nodes} nodes", link(*joined))
        });
        let slower = self.slowdown.iter().map(|(device, times)| {
            format!("\nslower   device {device} takes {times} times as long")
        });
        format!(
            "cluster  {}: {} x {} devices{memory}\n\
             compute  attention {} forward, {} backward, products {}\n\
             links    {}{between}{}{}",
            self.name,
            self.nodes,
            self.devices_per_node,
            speed(self.rates.forward),
            speed(self.rates.backward),
            speed(self.rates.products),
            self.inside(),
            levels.collect::<String>(),
            slower.collect::<String>(),
        )
    }
}

fn speed(operations: f64) -> String {
    let (scale, unit) = if operations >= 1e12 { (1e12, "T") } else { (1e9, "G") };
    format!("{:.0} {unit}FLOP/s", operations / scale)
}

fn link(link: Link) -> String {
    let latency = if link.latency > 0.0 {
        format!(" after {}", duration(link.latency))
    } else {
        String::new()
    };
    format!("{:.1} GB/s{latency}", link.bandwidth / 1e9)
}
