//! The written or chosen strategy of a comparison as text: its step, speed, memory and settings.

use annulus_experiment::Settled;
use annulus_text::{duration, size};

use crate::{Choice, Estimate};

impl Choice {
    /// The written or chosen strategy with its step and memory; empty where none can run.
    pub(crate) fn answer(&self) -> String {
        let Ok((name, _, best)) = self.best() else { return String::new() };
        if let Some((written, estimate)) = &self.written {
            let (auto, step) = (name.replace(" and ", "` and `"), duration(best.step));
            let written = written.replace(" and ", "` and `");
            let than = format!("`{written}` is written; `auto` would take `{auto}`, {step}");
            return self.detailed(&than, estimate);
        }
        let taken = match self.tables.as_slice() {
            [table] => table.taken(&self.cluster).into_iter().next().unwrap_or_default(),
            _ => format!("auto takes `{}`", name.replace(" and ", "` and `")),
        };
        self.detailed(&taken, &best)
    }

    /// What the busiest ranks send, where ranks are on several nodes.
    fn sent(&self, best: &Estimate) -> String {
        let [within, between] = best.sent.map(size);
        let of_nodes = format!(
            "sent     by a rank at most {within} of attention within its node, {between} to other nodes\n"
        );
        if self.ranks > self.cluster.devices_per_node { of_nodes } else { String::new() }
    }

    /// A line on a choice, with its step and memory.
    fn detailed(&self, taken: &str, best: &Estimate) -> String {
        let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / best.step);
        let (step, exposed, uneven) =
            (duration(best.step), share(best.exposed), share(best.uneven));
        let classes = best.classes.named().into_iter().filter(|(_, bytes)| *bytes > 0);
        let classes: Vec<String> = classes
            .map(|(class, bytes)| format!("{} {}", class.replace('_', "/"), size(bytes)))
            .collect();
        let Settled { state, recompute, loss_chunk, mlp_chunk } = best.memory;
        format!(
            "{taken}\n\
             step     {step}: exposed {exposed}, uneven {uneven}\n\
             speed    {}\n\
             {}\
             memory   {} on the fullest device{}\n         \
             by class, each at its own peak: {}\n\
             {}\
             with     parallel.state={} memory.recompute={} memory.loss_chunk={loss_chunk} memory.mlp_chunk={mlp_chunk}\n\n",
            self.pace.to_text(best),
            self.sent(best),
            size(best.fullest()),
            self.of_budget(best),
            classes.join(", "),
            self.offload(best),
            state.word(),
            recompute.word(),
        )
    }

    /// How the memory of the fullest device compares with what it may take.
    fn of_budget(&self, best: &Estimate) -> String {
        self.cluster.budget.map_or_else(String::new, |bytes| {
            let may = format!("{} that it may take (`memory.budget`)", size(bytes));
            match best.fullest().saturating_sub(bytes) {
                0 => format!(", of {may}"),
                over => format!(", {} more than the {may}", size(over)),
            }
        })
    }

    /// What is offloaded at the same time, and how that compares with a node's room for it; empty where nothing is.
    fn offload(&self, best: &Estimate) -> String {
        let [of_rank, of_node] = best.offloaded_bytes;
        if of_node == 0 {
            return String::new();
        }
        let node = if self.cluster.helping { "this machine" } else { "a node" };
        let room = self.cluster.offload_memory.map_or_else(String::new, |bytes| {
            let has = format!("{} that it has for that (`offload.memory`)", size(bytes));
            match of_node.saturating_sub(bytes) {
                0 => format!(", of {has}"),
                over => format!(", {} more than the {has}", size(over)),
            }
        });
        let (of_rank, of_node) = (size(of_rank), size(of_node));
        format!("offload  at most {of_rank} of a rank, {of_node} of {node}{room}\n")
    }
}
