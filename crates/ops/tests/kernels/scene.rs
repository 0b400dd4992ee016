//! A sequence on three ranks, seen from one of them.

use annulus_ops::attention::{Dropout, Dropped, Tile};
use annulus_ops::testing::random;
use annulus_sequence::{Coverage, Layout, Positions, Span, Spans, Visibility};
use candle_core::{DType, Device, Tensor};

/// Who sees whom, by positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Full,
    Causal,
    /// The last 70 positions, the query's own included.
    Window,
    /// Packed documents of 1, 37, 91, 1, 37, ... positions, causal inside.
    Documents,
    /// The first 20 positions and a window of 50: two intervals.
    Sink,
    /// Only what comes 80 or more before: the first rows see nothing.
    Distant,
    /// Of every 256 keys the first 128, which the next 30 queries see: not in the grid.
    Scattered,
}

impl Rule {
    pub(crate) const ALL: [Rule; 6] =
        [Rule::Causal, Rule::Full, Rule::Window, Rule::Documents, Rule::Sink, Rule::Distant];

    fn allows(self, q: usize, k: usize) -> bool {
        match self {
            Rule::Full => true,
            Rule::Causal => k <= q,
            Rule::Window => k <= q && q - k < 70,
            Rule::Documents => k <= q && document(k) == document(q),
            Rule::Sink => k <= q && (k < 20 || q - k < 50),
            Rule::Distant => k + 80 <= q,
            Rule::Scattered => k % 256 < 128 && k / 256 == q / 30,
        }
    }

    /// In local indices, pair by pair.
    pub(crate) fn visibility(self, queries: &Positions, keys: &Positions) -> Visibility {
        let [q, k]: [Vec<usize>; 2] = [queries.iter().collect(), keys.iter().collect()];
        let rows: Vec<Spans> =
            q.iter().map(|&q| spans(k.iter().map(|&k| self.allows(q, k)))).collect();
        let columns = k.iter().map(|&k| spans(q.iter().map(|&q| self.allows(q, k)))).collect();
        let seen: usize = rows.iter().flatten().map(|span| span.tokens()).sum();
        let coverage = match seen {
            0 => Coverage::Empty,
            _ if seen == q.len() * k.len() => Coverage::Full,
            _ => Coverage::Partial,
        };
        Visibility { queries: rows, keys: columns, coverage }
    }
}

fn document(position: usize) -> usize {
    let inside = position % 129;
    3 * (position / 129) + usize::from(inside >= 1) + usize::from(inside >= 38)
}

/// The intervals in which `seen` holds: two at most.
fn spans(seen: impl Iterator<Item = bool>) -> Spans {
    let mut found: Vec<Span> = Vec::new();
    for (index, _) in (0_u32..).zip(seen).filter(|(_, seen)| *seen) {
        match found.last_mut() {
            Some(span) if span.end == index => span.end += 1,
            _ => found.push(Span { start: index, end: index + 1 }),
        }
    }
    assert!(found.len() <= 2, "a rule of two intervals");
    found.resize(2, Span { start: 0, end: 0 });
    [found[0], found[1]]
}

/// Batch, query heads, KV heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads(pub(crate) usize, pub(crate) usize, pub(crate) usize);

/// Queries of one rank, keys and values of all.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) q: Tensor,
    pub(crate) gradient: Tensor,
    pub(crate) shards: Vec<Shard>,
    pub(crate) scale: f64,
    /// Where the queries are.
    pub(crate) positions: Positions,
    /// Which weights are left out.
    pub(crate) dropout: Option<Dropout>,
}

/// Keys of a rank, as the queries see them, and gradients that others left.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    pub(crate) visibility: Vec<Visibility>,
    pub(crate) carried: [Tensor; 2],
    pub(crate) positions: Positions,
}

impl Scene {
    /// The scene with its tensors on `device`.
    pub(crate) fn on(&self, device: &Device) -> Scene {
        let moved = |tensor: &Tensor| tensor.to_device(device).unwrap();
        let shard = |shard: &Shard| Shard {
            k: moved(&shard.k),
            v: moved(&shard.v),
            visibility: shard.visibility.clone(),
            carried: [moved(&shard.carried[0]), moved(&shard.carried[1])],
            positions: shard.positions.clone(),
        };
        Scene {
            q: moved(&self.q),
            gradient: moved(&self.gradient),
            shards: self.shards.iter().map(shard).collect(),
            scale: self.scale,
            positions: self.positions.clone(),
            dropout: self.dropout,
        }
    }

    /// The scene with masks of its own for each batch row, as packed sequences have them: `rules`.
    pub(crate) fn under(mut self, rules: &[Rule]) -> Scene {
        for shard in &mut self.shards {
            let of = |rule: &Rule| rule.visibility(&self.positions, &shard.positions);
            shard.visibility = rules.iter().map(of).collect();
        }
        self
    }

    /// A shard as a kernel is given it.
    pub(crate) fn tile<'a>(&'a self, shard: &'a Shard) -> Tile<'a> {
        let [queries, keys] = [&self.positions, &shard.positions];
        let dropped = |dropout| Dropped { dropout, head: 3, queries, keys };
        let tile = Tile::new(&shard.k, &shard.v, &shard.visibility);
        Tile { dropped: self.dropout.map(dropped), ..tile }
    }

    /// `tokens` per rank, as `rank` of three sees them.
    pub(crate) fn new(
        (rule, layout, rank): (Rule, Layout, usize),
        Heads(batch, heads, groups): Heads,
        dim: usize,
        tokens: usize,
        dtype: DType,
    ) -> Scene {
        let sharded = layout.shard(3 * tokens, 3).unwrap();
        let tensor = |name: &str, heads, dtype| {
            let values = random(name, &[batch, heads, tokens, dim]).unwrap();
            (values * 1.5).unwrap().to_dtype(dtype).unwrap()
        };
        let shard = |(index, keys): (usize, &Positions)| Shard {
            k: tensor(&format!("k{index}"), groups, dtype),
            v: tensor(&format!("v{index}"), groups, dtype),
            visibility: vec![rule.visibility(&sharded[rank], keys)],
            // About as large as what is added: neither hides in the rounding of the other.
            carried: ["dk", "dv"].map(|name| {
                (tensor(&format!("{name}{index}"), groups, DType::F32) / 32.0).unwrap()
            }),
            positions: keys.clone(),
        };
        Scene {
            q: tensor("q", heads, dtype),
            gradient: tensor("gradient", heads, dtype),
            shards: sharded.iter().enumerate().map(shard).collect(),
            scale: 1.0 / (dim as f64).sqrt(),
            positions: sharded[rank].clone(),
            dropout: None,
        }
    }
}
