//! The comparison of strategies as JSON, for programs: seconds and bytes; `why` is text.

use std::collections::BTreeMap;

use annulus_plan::label;
use serde_json::{Value, json};

use crate::table::fits;
use crate::{Candidate, Choice, Cluster, Hiding, RouteCost, Shared, Table, Weighing};

impl Choice {
    /// The tables and the choice of `strategy: auto` as JSON; with several layer groups they are in `layers`, beside the layouts that these
    /// may share.
    pub fn to_json(&self) -> Value {
        let mut shown = json!({
            "cluster": self.cluster.name,
            "budget": self.cluster.budget,
            "offload_memory": self.cluster.offload_memory,
        });
        let alike = if let [only] = self.tables.as_slice() { Some(only) } else { None };
        if let Some(table) = alike {
            shown["strategies"] = table.strategies(&self.cluster);
            shown["auto"] = json!(table.chosen.map(label));
        } else {
            let tables = self.tables.iter().map(|table| table.to_json(&self.cluster));
            shown["layers"] = tables.collect();
        }
        if let Some(taken) = self.layouts.get(self.taken) {
            shown["layouts"] = self.layouts.iter().map(Shared::to_json).collect();
            shown["layout"] = json!(taken.sharded.word());
        }
        shown["why"] = json!(self.why());
        if let Some((strategy, estimate)) = &self.written {
            let (step, peak) = (estimate.step, &estimate.peak);
            let [of_rank, of_node] = estimate.offloaded_bytes;
            shown["written"] = json!({
                "strategy": strategy,
                "step": step,
                "peak": peak,
                "offloaded_of_rank": of_rank,
                "offloaded_of_node": of_node,
            });
        }
        let answered = self.answered();
        shown["speed"] = json!(answered.map(|(_, _, estimate)| self.pace.to_json(&estimate)));
        if let Some(table) = alike {
            shown["routes_of"] = table.routes();
        }
        shown["weights"] = json!(self.weighing.as_ref().map(Weighing::to_json));
        shown["hidden_from"] = self.hiding.iter().map(Hiding::to_json).collect();
        shown
    }
}

impl Table {
    fn to_json(&self, cluster: &Cluster) -> Value {
        json!({
            "layers": self.layers,
            "strategies": self.strategies(cluster),
            "auto": self.chosen.map(label),
            "routes_of": self.routes(),
        })
    }

    fn strategies(&self, cluster: &Cluster) -> Value {
        self.candidates.iter().map(|candidate| candidate.to_json(cluster)).collect()
    }

    fn routes(&self) -> Value {
        let cost = |cost: &RouteCost| json!({ "what": cost.word(), "seconds": cost.seconds, "bytes": cost.bytes });
        self.routes.iter().map(cost).collect()
    }
}

impl Candidate {
    fn to_json(&self, cluster: &Cluster) -> Value {
        let name = label(self.strategy);
        match &self.outcome {
            Ok(estimate) => json!({
                "strategy": name,
                "step": estimate.step,
                "forward": estimate.forward,
                "backward": estimate.backward,
                "exposed": estimate.exposed,
                "uneven": estimate.uneven,
                "balance": estimate.balance,
                "bytes": estimate.bytes,
                "bytes_within_node": estimate.sent[0],
                "bytes_between_nodes": estimate.sent[1],
                "gradient_sum": estimate.gradient_sum,
                "offload": estimate.offloaded.known(),
                "offloaded_of_rank": estimate.offloaded_bytes[0],
                "offloaded_of_node": estimate.offloaded_bytes[1],
                "peak": estimate.peak,
                "classes": estimate.classes.named().into_iter().collect::<BTreeMap<_, _>>(),
                "state": estimate.memory.state.word(),
                "recompute": estimate.memory.recompute.word(),
                "loss_chunk": estimate.memory.loss_chunk,
                "mlp_chunk": estimate.memory.mlp_chunk,
                "fits": fits(estimate, cluster),
            }),
            Err(why) => json!({ "strategy": name, "refused": why }),
        }
    }
}

impl Shared {
    fn to_json(&self) -> Value {
        json!({
            "layout": self.sharded.word(),
            "strategies": self.strategies.iter().map(|one| label(*one)).collect::<Vec<_>>(),
            "step": self.outcome.as_ref().ok().map(|estimate| estimate.step),
            "refused": self.outcome.as_ref().err(),
        })
    }
}

impl Weighing {
    fn to_json(&self) -> Value {
        let Weighing { weights, written, equal, weighed, .. } = self;
        json!({ "weights": weights, "written": written, "equal": equal, "weighed": weighed })
    }
}

impl Hiding {
    fn to_json(&self) -> Value {
        let Hiding { place, forward, backward, block } = self;
        let table = json!({ "block": block, "sequence": 6.0 * block });
        json!({ "link": place, "forward": forward, "backward": backward, "table_2": table })
    }
}
