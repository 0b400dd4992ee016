//! The classic table of ways to split attention: memory, communication, whether attention stays
//! full, what a causal mask does to it. One layer forward.
//!
//! The first rows are closed forms, in elements per rank, of n tokens, P ranks, width d of all query
//! heads and k of all KV heads, and a window of w:
//!
//! ```text
//! single device               2nd + 2nk                         nothing is sent
//!   with the scores kept      2nd + 2nk + heads n²
//! naive broadcast             2(n/P)d + 2nk                     2(n/P)k (P-1)
//! sliding window              2(n/P)(d+k) + 2(w-1)k             2(w-1)k
//! Li et al.'s ring            2(n/P)(d+k) + 2(n/P)k + heads (n/P) n    2(n/P)k (P-1)
//! Ring Attention              2(n/P)(d+k) + 4(n/P)k             2(n/P)k (P-1)
//! ```
//!
//! The others are counted from the schedules that run. Li et al.: arXiv 2105.13120, whose ring of
//! keys, then of values, makes every rank hold its rows of the whole matrix of scores. Ring
//! Attention: arXiv 2310.01889. Bytes are in powers of 1024 here, like tokens.

use annulus_sequence::{BlockShape, Heads, Mask, Schedule, Strategy, Wire, pairs_per_hop, prove};
use annulus_text::{duration, size, stacked};
use serde_json::{Value, json};

use crate::Load;
use crate::grid::count;

/// The setting of the comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Tokens of the sequence, n.
    pub tokens: usize,
    /// Elements of a token's queries, d.
    pub hidden: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Key/value heads; at most as many as query heads.
    pub key_value_heads: usize,
    /// Ranks, P.
    pub ranks: usize,
    /// Bytes per second of a rank's link.
    pub bandwidth: f64,
    /// Bytes of an element.
    pub element: usize,
    /// Keys that a query sees in the row of the sliding window, w.
    pub window: usize,
}

/// A row of the comparison: one way to split attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// The name of the method.
    pub name: String,
    /// Bytes of queries, keys, values, outputs and everything held beside them, on the fullest rank.
    pub memory: f64,
    /// Bytes that the busiest rank sends.
    pub sent: f64,
    /// The order of memory and of bytes sent, as textbooks write it; empty where they were counted.
    pub order: (&'static str, &'static str),
    /// Whether every query sees every key that the mask allows.
    pub full: bool,
    /// The effect of a causal mask on the balance.
    pub causal: String,
}

impl Comparison {
    /// The rows of the comparison: closed forms, then our strategies without those that cannot split the sequence.
    pub fn methods(&self) -> Vec<Method> {
        let ours = Strategy::ALL.into_iter().filter(|strategy| *strategy != Strategy::Local);
        self.classic().into_iter().chain(ours.filter_map(|ours| self.counted(ours))).collect()
    }

    /// Bytes of a broadcast of one tensor of n rows and d columns to each of P ranks, as textbooks count it: P n d elements.
    pub fn broadcast(&self) -> f64 {
        self.bytes(self.ranks as f64 * self.tokens as f64 * self.hidden as f64)
    }

    /// Seconds that `bytes` take on the link.
    pub fn seconds(&self, bytes: f64) -> f64 {
        bytes / self.bandwidth
    }

    fn bytes(&self, elements: f64) -> f64 {
        elements * self.element as f64
    }

    fn key_value_width(&self) -> f64 {
        (self.key_value_heads * self.head_dim) as f64
    }

    fn query_heads(&self) -> usize {
        (self.hidden / self.head_dim).max(1)
    }

    fn classic(&self) -> Vec<Method> {
        let (n, d, k) = (self.tokens as f64, self.hidden as f64, self.key_value_width());
        let (heads, ranks) = (self.query_heads() as f64, self.ranks as f64);
        let (own, window) = (n / ranks, (self.window.min(self.tokens) as f64 - 1.0).max(0.0));
        let round = 2.0 * own * k * (ranks - 1.0);
        let row = |name: &str, memory: f64, sent: f64, order, full, causal: &str| Method {
            name: name.to_owned(),
            memory: self.bytes(memory),
            sent: self.bytes(sent),
            order,
            full,
            causal: causal.to_owned(),
        };
        let split = 2.0 * own * (d + k);
        let uneven = "uneven";
        let whole = 2.0 * n * (d + k);
        let scores = whole + heads * n * n;
        let li = split + 2.0 * own * k + heads * own * n;
        vec![
            row("single device", whole, 0.0, ("n d", "-"), true, "yes"),
            row("  with the scores kept", scores, 0.0, ("n²", "-"), true, "yes"),
            row("naive broadcast", 2.0 * (own * d + n * k), round, ("n d", "n d P"), true, uneven),
            row(
                "sliding window",
                split + 2.0 * window.min(n - own) * k,
                2.0 * window.min(n - own) * k,
                ("n d / P + w d", "w d"),
                false,
                "yes",
            ),
            row("Li et al.'s ring", li, round, ("n² / P", "n d"), true, uneven),
            row("Ring Attention", split + 4.0 * own * k, round, ("n d / P", "n d"), true, uneven),
        ]
    }

    /// The row of a strategy, counted from its own schedule; `None` where it cannot split the sequence.
    fn counted(&self, strategy: Strategy) -> Option<Method> {
        let mask = Mask::causal();
        let heads = Heads { query: self.query_heads(), key_value: self.key_value_heads };
        let split = strategy.split(&mask, self.tokens, self.ranks, heads).ok()?;
        let schedule = strategy.forward(&split).ok()?;
        let proof = prove(&schedule).ok()?;
        let wire = Wire::new(self.element, self.element);
        let shape = BlockShape { batch: 1, head_dim: self.head_dim, wire, order_free: false };
        let load = Load::of(&schedule, shape, 1);
        let (d, k) = (self.hidden as f64, self.key_value_width());
        let memory = |rank: usize| {
            let (own, alive) = (schedule.positions[rank].tokens(), proof.alive[rank]);
            let outputs = alive.outputs.saturating_sub(own * heads.query);
            let others = alive.queries + 2 * alive.key_values + alive.halves + outputs;
            2.0 * own as f64 * (d + k) + (others * self.head_dim) as f64 + alive.scores as f64
        };
        let sent = (0..self.ranks).map(|rank| load.bytes(rank)).max().unwrap_or_default();
        Some(Method {
            name: format!("`{}`", strategy.name()),
            memory: self.bytes((0..self.ranks).map(memory).fold(0.0, f64::max)),
            sent: sent as f64,
            order: ("", ""),
            full: true,
            causal: balance(&schedule),
        })
    }

    /// The comparison as text, with the textbook's case in a line.
    pub fn to_text(&self) -> String {
        let head = ["", "memory", "per rank", "sent", "per rank", "time", "full", "causal"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for method in self.methods() {
            let full = if method.full { "yes" } else { "no" };
            rows.push(vec![
                method.name.clone(),
                method.order.0.to_owned(),
                binary(method.memory),
                method.order.1.to_owned(),
                if method.sent > 0.0 { binary(method.sent) } else { String::from("-") },
                if method.sent > 0.0 { duration(self.seconds(method.sent)) } else { "-".into() },
                full.to_owned(),
                method.causal.clone(),
            ]);
        }
        let broadcast = self.broadcast();
        format!(
            "one layer forward: n = {} tokens, d = {}, P = {} ranks, {}/s,\n\
             {} bytes an element (k, M and GB are powers of 1024)\n\n{}\n\
             P n d elements, one tensor broadcast to every rank: {}, {:.2} s\n",
            count(self.tokens),
            self.hidden,
            self.ranks,
            binary(self.bandwidth),
            self.element,
            stacked(&rows),
            binary(broadcast),
            self.seconds(broadcast),
        )
    }

    /// The comparison as JSON, for programs: bytes and seconds.
    pub fn to_json(&self) -> Value {
        let method = |method: &Method| {
            json!({
                "name": method.name.trim().trim_matches('`'),
                "memory": method.memory,
                "sent": method.sent,
                "seconds": self.seconds(method.sent),
                "full": method.full,
                "causal": method.causal,
            })
        };
        let broadcast = self.broadcast();
        json!({
            "tokens": self.tokens,
            "hidden": self.hidden,
            "ranks": self.ranks,
            "bandwidth": self.bandwidth,
            "methods": self.methods().iter().map(method).collect::<Vec<_>>(),
            "broadcast": { "bytes": broadcast, "seconds": self.seconds(broadcast) },
        })
    }
}

/// The slowest rank of every hop against an even share, as text.
fn balance(schedule: &Schedule) -> String {
    let hops = pairs_per_hop(schedule);
    let slowest: f64 = hops.iter().filter_map(|ranks| ranks.iter().max()).map(|n| *n as f64).sum();
    let all: f64 = hops.iter().flatten().map(|pairs| *pairs as f64).sum();
    let times = slowest * schedule.world() as f64 / all;
    if times < 1.005 { String::from("even") } else { format!("{times:.2} times uneven") }
}

/// Bytes in powers of 1024, by the names that textbooks give them.
fn binary(bytes: f64) -> String {
    size(bytes as u64).replace("iB", "B").replace(".0 ", " ")
}
