//! Strategies beside each other, as text for people.

use annulus_plan::{duration, label, size};
use annulus_sequence::{Strategy, aligned};

use crate::{Candidate, Choice, Cluster, Estimate, Hiding, Level, Link, Table};

const HEAD: [&str; 9] = [
    "strategy",
    "step",
    "attention",
    "backward",
    "exposed",
    "uneven",
    "balance",
    "sent",
    "peak memory",
];

impl Choice {
    /// The tables of all strategies and what `strategy: auto` takes of them.
    pub fn to_text(&self) -> String {
        let tables: String = self.tables.iter().map(|table| self.table(table) + "\n").collect();
        let mut notes = self.refused();
        notes.extend(self.hiding.iter().map(|hiding| {
            let Hiding { place, .. } = hiding;
            let [forward, backward] = [hiding.forward, hiding.backward].map(f64::ceil);
            let [block, sequence] = [hiding.block, 6.0 * hiding.block].map(f64::ceil);
            format!(
                "  from {forward} tokens per rank a ring hides its messages {place}, {backward} \
                 backward\n  \
                 Ring Attention's least block {place} is {block} tokens per device, its least \
                 sequence {sequence}"
            )
        }));
        notes.extend(self.tables.iter().find_map(|table| table.ranking().first().copied()).map(
            |(_, estimate)| {
                let summed = duration(estimate.gradient_sum);
                format!("  {summed} of each step sum gradients, which is exposed")
            },
        ));
        notes.extend(self.why());
        let Choice { title, cluster, .. } = self;
        format!("{title}\n{}\n\n{tables}{}\n", cluster.to_text(), notes.join("\n"))
    }

    /// A table, under the layers that it is of.
    fn table(&self, table: &Table) -> String {
        let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
        for Candidate { strategy, outcome } in &table.candidates {
            rows.extend(outcome.iter().map(|estimate| self.row(label(*strategy), estimate)));
        }
        let over = self.layouts.get(self.taken).zip(table.layers.as_ref());
        let head = over.map_or_else(String::new, |(shared, layers)| {
            let word = shared.sharded.word();
            format!("{layers}; over `layout: {word}`, a model of these layers alone\n")
        });
        head + &aligned(&rows)
    }

    /// Why some cannot run, each said once whatever the layers.
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
        let over = if self.fits(estimate) { "" } else { " does not fit" };
        vec![
            name,
            duration(estimate.step),
            duration(estimate.forward),
            duration(estimate.backward),
            share(estimate.exposed),
            share(estimate.uneven),
            format!("{:.2}", estimate.balance),
            size(estimate.bytes),
            size(estimate.fullest()) + over,
        ]
    }
}

impl Cluster {
    /// Devices, links and speeds, a line each.
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
             links    {} inside a node{between}{}{}",
            self.name,
            self.nodes,
            self.devices_per_node,
            speed(self.rates.forward),
            speed(self.rates.backward),
            speed(self.rates.products),
            link(self.inside),
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
