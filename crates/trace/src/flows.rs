//! What ranks sent each other and waited for, within hosts and between hosts.

use annulus_text::stacked;
use serde_json::{Value, json};

use crate::sums::seconds;
use crate::words::milliseconds;
use crate::{Activity, Exposed, Trace};

/// Names of flows: blocks, or sums and gathers; within a host, or between hosts.
const NAMES: [[&str; 2]; 2] = [
    ["blocks within a host", "blocks between hosts"],
    ["sums within a host", "sums between hosts"],
];

/// One kind of traffic. Times are nanoseconds, summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The kind of traffic, and whether it stays within a host.
    pub name: &'static str,
    /// The number of blocks, or of ranks' sums.
    pub count: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Time spent waiting for this traffic.
    pub waiting: u64,
    /// Time of that spent waiting for ranks that had not sent yet; unknown for sums.
    pub late: u64,
}

impl Flow {
    /// The flows of a trace with several processes, whose waits are `exposed`; empty for another.
    pub(crate) fn all(trace: &Trace, exposed: &[Exposed]) -> Vec<Flow> {
        if trace.locations.is_empty() {
            return Vec::new();
        }
        let mut flows = NAMES.map(|names| names.map(Flow::none));
        for Exposed { moved, waiting, late, .. } in exposed {
            let apart = trace.are_apart(moved.from, moved.to);
            flows[0][usize::from(apart)].add(moved.bytes, *waiting, *late);
        }
        let all = (1..trace.locations.len()).any(|rank| trace.are_apart(0, rank));
        for span in trace.ranks.iter().flatten() {
            if let Activity::Sum { bytes, among, .. } = span.activity {
                let apart = among.map_or(all, |[first, last]| trace.are_apart(first, last));
                flows[1][usize::from(apart)].add(bytes, span.length(), 0);
            }
        }
        flows.into_iter().flatten().filter(|flow| flow.count > 0).collect()
    }

    fn none(name: &'static str) -> Flow {
        Flow { name, count: 0, bytes: 0, waiting: 0, late: 0 }
    }

    fn add(&mut self, bytes: u64, waiting: u64, late: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.waiting = self.waiting.saturating_add(waiting);
        self.late = self.late.saturating_add(late);
    }

    /// The flow as JSON, for programs: times in seconds.
    pub(crate) fn to_json(self) -> Value {
        let Flow { name, count, bytes, waiting, late } = self;
        let [waiting, late] = [waiting, late].map(seconds);
        json!({"link": name, "count": count, "bytes": bytes, "waiting": waiting, "late": late})
    }

    /// A table with a row per flow; `planned` numbers follow in brackets.
    pub(crate) fn table(flows: &[Flow], planned: Option<&[Flow]>) -> String {
        let first = if planned.is_some() { "by link [planned]" } else { "by link" };
        let head = [first, "number", "bytes sent", "waits, ms", "for late ranks"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for flow in flows {
            let planned = planned.and_then(|all| all.iter().find(|one| one.name == flow.name));
            let beside = |show: &dyn Fn(&Flow) -> String| match planned {
                Some(planned) => format!("{} [{}]", show(flow), show(planned)),
                None => show(flow),
            };
            rows.push(vec![
                flow.name.to_owned(),
                beside(&|flow| flow.count.to_string()),
                beside(&|flow| flow.bytes.to_string()),
                beside(&|flow| milliseconds(flow.waiting)),
                beside(&|flow| milliseconds(flow.late)),
            ]);
        }
        stacked(&rows)
    }
}
