//! Gradients on their way to their owners: sums that tiles continue, parts that wait or are widened, and pieces that are put together.

use annulus_sequence::{Part, Pass, Route, Schedules};

use super::{F32, Share, product, sum};
use crate::Plan;

/// How gradients reach their owners, by the first hop in which a rank has any: all hops have tiles of as many heads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reduction {
    /// KV heads of a tile whose gradients are added to sums that are there; 0 where every tile begins them.
    key_values: u64,
    /// KV heads of a tile.
    heads: u64,
    /// How many ranks share the heads of a block of queries.
    lanes: u64,
    /// Whether every tile's gradients go straight to the owner of their keys.
    is_direct: bool,
    /// Whether gradients of keys and values travel.
    are_sent: bool,
}

impl Reduction {
    pub(super) fn of(plan: &Plan, group: usize, schedules: &Schedules, place: usize) -> Reduction {
        let schedule = schedules.of(Pass::Backward);
        let hops = (0..schedule.hops()).map(|hop| schedule.hop(place, hop).tiles);
        let mut hops = hops.filter(|tiles| !tiles.is_empty());
        let Some(tiles) = hops.next() else { return Reduction::default() };
        let meetings = tiles.meetings();
        let first = &meetings[0];
        // Keys stay where queries travel, and where several blocks of queries meet them one after the other.
        let stay = plan.groups[group].route.how == Route::Queries && hops.next().is_some();
        let are_met_again = meetings.iter().any(|meeting| meeting.queries != first.queries);
        let heads = first.heads.len() as u64;
        let all = schedule.whole(Part::Query, first.queries.owner).heads.len();
        Reduction {
            key_values: if stay || are_met_again { heads } else { 0 },
            heads,
            lanes: (all / first.queries.heads.len()) as u64,
            is_direct: plan.groups[group].route.how == Route::Direct,
            are_sent: schedules.proof(Pass::Backward).sent.contains(&Part::Gradient),
        }
    }
}

impl Share<'_> {
    /// Bytes of copied gradients of keys and values: a CPU's tile adds to a copy of the sums that it continues. Gradients of a view are
    /// added to a copy of keys' and then of values'.
    pub(super) fn copied_results(&self) -> u64 {
        let shape = &self.plan.own;
        let of = |heads: u64| product(&[self.most, heads, self.sums(shape.head_dim as u64)]);
        let viewed = if self.thinned.is_some() { of(shape.num_key_value_heads as u64) } else { 0 };
        if self.plan.experiment.host.computes_on_gpus() || self.is_reference() {
            return viewed;
        }
        viewed.max(2 * of(self.reduction.key_values))
    }

    /// Bytes of gradients of keys and values beyond those that a proof finds alive, `made` rows of heads that a rank has made. Gradients that
    /// go straight to their owner wait where it is a hop behind. Those that are sent in 16 bits, half of what `made` counts of others', are
    /// widened where they arrive.
    pub(super) fn beyond_proof(&self, made: usize) -> u64 {
        let Reduction { heads, is_direct, are_sent, .. } = self.reduction;
        let (plan, made) = (self.plan, made as u64);
        let of = |rows: u64| {
            product(&[2, plan.micro_batch as u64, rows, self.sums(plan.own.head_dim as u64)])
        };
        let of_tile = self.most / plan.micro_batch as u64 * heads;
        let is_narrow = (plan.block().wire.gradient as u64) < F32;
        if is_narrow && are_sent && plan.experiment.block().is_none() {
            let of_others = made.saturating_sub(self.positions() * heads);
            return of(of_tile - of_others.min(of_tile) / 2);
        }
        let left = (plan.experiment.data.tokens as u64 * heads).saturating_sub(made);
        if is_direct { of(of_tile.min(left)) } else { 0 }
    }

    /// Bytes while gradients of some heads from several ranks are put together, where a query's running state takes `state`: the own
    /// pieces of queries' and all of them; or all of queries', keys' and values'.
    pub(super) fn assembling(&self, state: u64) -> u64 {
        let lanes = self.reduction.lanes;
        if lanes < 2 {
            return 0;
        }
        let shape = &self.plan.own;
        let of =
            |heads: usize| product(&[self.rows, heads as u64, self.sums(shape.head_dim as u64)]);
        let queries = of(shape.num_attention_heads);
        sum([queries, (state / lanes).max(of(2 * shape.num_key_value_heads))])
    }
}
