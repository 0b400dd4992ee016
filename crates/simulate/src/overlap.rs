//! How many tokens a rank needs so that what travels hides behind what is computed.
//!
//! A rank with n rows computes `4 n² v d` operations per query head in a hop of a ring, v of whose
//! pairs are visible (1: all; 1/2: a causal mask, evenly spread), while `2 n d e` bytes of keys and
//! values arrive per KV head. With g query heads to a KV head, F operations and B
//! bytes per second, the latter take no longer from
//!
//! ```text
//! forward   n = F e / (2 v g B)
//! backward  n = F (e + e') / (5 v g B)      gradients of e' bytes in the wake, 10 n² v d operations
//! ```
//!
//! With v = 1, e = 2 and g = 1, n = F / B: the least block of Ring Attention (arXiv 2310.01889,
//! section 3), which holds six such blocks: its "minimal sequence length" is 6 F / B (Table 2).

use annulus_experiment::MaskKind;
use annulus_plan::Plan;
use annulus_sequence::Pass;

use crate::{Cluster, Level, Link};

/// The quantities that decide whether communication hides behind attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// Speed of attention in this pass, operations per second.
    pub speed: f64,
    /// The link between neighbours.
    pub link: Link,
    /// Query heads per KV head.
    pub group: f64,
    /// The fraction of pairs that are visible in a hop.
    pub visible: f64,
    /// Bytes of an element of keys and values on the wire.
    pub element: f64,
    /// Bytes of an element of their gradients on the wire.
    pub gradient: f64,
}

impl Overlap {
    /// The fewest tokens per rank at which a pass of a ring waits for no byte; latency is left out.
    pub fn tokens(&self, pass: Pass) -> f64 {
        let ratio = self.speed / self.link.bandwidth / (self.visible * self.group);
        match pass {
            Pass::Forward => ratio * self.element / 2.0,
            Pass::Backward => ratio * (self.element + self.gradient) / 5.0,
        }
    }
}

/// Ring Attention's minimal block of tokens per device: `F / B`, with operations and bytes per
/// second. Its minimal sequence per device is six times as long.
pub fn minimal_block(speed: f64, bandwidth: f64) -> f64 {
    let link = Link { bandwidth, latency: 0.0 };
    let (group, visible, element, gradient) = (1.0, 1.0, 2.0, 2.0);
    Overlap { speed, link, group, visible, element, gradient }.tokens(Pass::Forward)
}

/// The tokens per rank from which a ring hides its messages behind attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Hiding {
    /// The ranks between which messages travel, in words.
    pub place: String,
    /// Tokens per rank, forward.
    pub forward: f64,
    /// Tokens per rank, backward.
    pub backward: f64,
    /// Ring Attention's [`minimal_block`] of this link.
    pub block: f64,
}

impl Cluster {
    /// The tokens per rank that hide the messages of a plan's model, by kind of link. Pairs are taken as spread evenly; a window is left
    /// out.
    pub fn hiding(&self, plan: &Plan) -> Vec<Hiding> {
        let shape = &plan.shape;
        let wire = plan.block().wire;
        let causal = plan.experiment.attention.masking.mask == MaskKind::Causal;
        let tokens = |link: Link, speed: f64, pass: Pass| {
            let overlap = Overlap {
                speed,
                link,
                group: shape.num_attention_heads as f64 / shape.num_key_value_heads as f64,
                visible: if causal { 0.5 } else { 1.0 },
                element: wire.key_value as f64,
                gradient: wire.gradient as f64,
            };
            overlap.tokens(pass)
        };
        let hiding = |place: &str, link: Link| Hiding {
            place: place.to_owned(),
            forward: tokens(link, self.rates.forward, Pass::Forward),
            backward: tokens(link, self.rates.backward, Pass::Backward),
            block: minimal_block(self.rates.forward, link.bandwidth),
        };
        let mut links = vec![hiding("inside a node", self.inside)];
        if self.nodes > 1 {
            links.push(hiding("between nodes", self.between));
        }
        let level = |level: &Level| hiding(&format!("from {0} to {0}", level.name), level.link);
        links.extend(self.levels.iter().map(level));
        links
    }
}
