//! Attention with queries and keys divided into blocks, forward and backward, with order-free sums.

use annulus_ops::attention::{
    Attended, AttentionKernel, BackwardTile, Dropout, Dropped, KeyValueGradients, State, Tile,
};
use annulus_ops::order_free::{add_sums, values};
use annulus_sequence::{Layout, Mask, Positions, Rule, View};
use candle_core::{DType, Device, Tensor};

use super::support::{Case, rows};

pub(crate) const BLOCK: usize = 32;
pub(crate) const TOKENS: usize = 256;

/// Output, log-sum-exp, and gradients of queries, keys and values, of all positions.
pub(crate) type Found = [Tensor; 5];

pub(crate) struct Split<'a> {
    pub(crate) kernel: &'a dyn AttentionKernel,
    pub(crate) mask: &'a Mask,
    pub(crate) shards: Vec<Positions>,
    pub(crate) dropout: Option<Dropout>,
    /// The shard whose keys a shard meets first.
    pub(crate) first: usize,
    /// Whether forward has all tiles in one call, and backward carries sums on; else every tile has a call, and sums are added up.
    pub(crate) at_once: bool,
}

impl Split<'_> {
    fn views(&self, q: &Positions, k: &Positions) -> Vec<View> {
        let views = View::all(self.mask, q, k);
        assert!(views.iter().all(|view| view.queries.rows.are_all_of(q.tokens())));
        views
    }

    /// Views of the keys of every shard, in the order in which queries of shard `index` meet them.
    fn met(&self, index: usize) -> Vec<(usize, View)> {
        let world = self.shards.len();
        let order = (0..world).map(|hop| (index * self.first + hop + self.first) % world);
        let of = |keys| {
            let views = self.views(&self.shards[index], &self.shards[keys]);
            views.into_iter().map(move |view| (keys, view))
        };
        order.flat_map(of).collect()
    }

    /// Runs a case on the kernel's device; results are copied back.
    pub(crate) fn run(&self, case: &Case) -> Found {
        let (mut all, mut keys): (Vec<Vec<Tensor>>, Vec<Option<[Tensor; 2]>>) =
            (Vec::new(), vec![None; self.shards.len()]);
        for index in 0..self.shards.len() {
            let (attended, dq) = self.of_queries(case, index, &mut keys);
            all.push(vec![attended.out, attended.lse.unsqueeze(3).unwrap(), dq]);
        }
        let backend = self.kernel.backend();
        for ((row, keys), own) in all.iter_mut().zip(keys).zip(&self.shards) {
            // Nobody sees keys that are padding.
            let zeros = || rows(&case.k, own).zeros_like().unwrap().to_dtype(DType::F32).unwrap();
            row.extend(match keys {
                Some(sums) => sums.map(|sums| values(&backend, &sums).unwrap()),
                None => [zeros(), zeros()],
            });
        }
        std::array::from_fn(|which| {
            let parts: Vec<Tensor> = all.iter().map(|row| row[which].clone()).collect();
            let mut order: Vec<(usize, u32)> =
                self.shards.iter().flat_map(Positions::iter).zip(0..).collect();
            order.sort_unstable();
            let order: Vec<u32> = order.into_iter().map(|(_, at)| at).collect();
            let order = Tensor::new(order, parts[0].device()).unwrap();
            let all = Tensor::cat(&parts, 2).unwrap().index_select(&order, 2).unwrap();
            all.to_device(&Device::Cpu).unwrap()
        })
    }

    fn of_queries(
        &self,
        case: &Case,
        index: usize,
        sums: &mut [Option<[Tensor; 2]>],
    ) -> (Attended, Tensor) {
        let own = case.of_rank(&self.shards[index]);
        let met = self.met(index);
        let keys: Vec<[Tensor; 2]> = met
            .iter()
            .map(|(_, view)| [&case.k, &case.v].map(|all| rows(all, &view.keys.positions)))
            .collect();
        let tile = |at: usize| {
            let View { queries, keys: columns, visibility } = &met[at].1;
            let positions = [&queries.positions, &columns.positions];
            let [queries, columns] = positions;
            let dropped =
                self.dropout.map(|dropout| Dropped { dropout, head: 0, queries, keys: columns });
            let tile = Tile::new(&keys[at][0], &keys[at][1], visibility);
            Tile { dropped, positions: Some(positions), ..tile }
        };
        let mut state = self.kernel.begin(&own.q, case.scale).unwrap();
        let tiles: Vec<Tile<'_>> = (0..met.len()).map(tile).collect();
        for some in tiles.chunks(if self.at_once { tiles.len().max(1) } else { 1 }) {
            self.kernel.forward(some, &mut *state, &|| Ok(())).unwrap();
        }
        let attended = self.kernel.finish(state).unwrap();
        let (q, gradient) = (&own.q, &own.gradient);
        let mut state = self.kernel.begin_backward(q, &attended, gradient, case.scale).unwrap();
        for (tile, (of, view)) in tiles.into_iter().zip(&met) {
            assert!(view.keys.rows.are_all_of(self.shards[*of].tokens()));
            self.add(tile, &mut *state, &mut sums[*of]);
        }
        let dq = self.kernel.finish_backward(state).unwrap();
        (attended, values(&self.kernel.backend(), &dq).unwrap())
    }

    /// Adds a tile's results to the sums of its keys and values.
    fn add(&self, tile: Tile<'_>, state: &mut dyn State, sums: &mut Option<[Tensor; 2]>) {
        let carried = if self.at_once { sums.take() } else { None };
        let carried = carried.map(|[dk, dv]| KeyValueGradients { dk, dv });
        let tiles = vec![BackwardTile { tile, carried }];
        let made = self.kernel.backward(tiles, state, &|| Ok(())).unwrap().remove(0);
        let made = [made.dk, made.dv];
        match sums {
            Some(sums) => sums.iter().zip(&made).for_each(|(to, from)| {
                add_sums(&self.kernel.backend(), to, from).unwrap();
            }),
            None => *sums = Some(made),
        }
    }
}

pub(crate) fn masks() -> Vec<(&'static str, Mask)> {
    vec![
        ("full", Mask::full()),
        ("causal", Mask::causal()),
        ("window", Mask::causal().and(Rule::Window(41))),
        ("documents", Mask::causal().and(Rule::documents(&[100, 7, 149]))),
        ("sinks", Mask::causal().and(Rule::Window(20)).and(Rule::Sinks(3))),
        ("sixteen sinks", Mask::causal().and(Rule::Window(32)).and(Rule::Sinks(16))),
        ("padding", Mask::full().and(Rule::KeyPadding(vec![90]))),
        ("a block's middle", Mask::causal().and(Rule::KeyPadding(vec![46]))),
        ("nothing", Mask::causal().and(Rule::KeyPadding(vec![0]))),
    ]
}

pub(crate) fn shards(layout: Layout, world: usize) -> Vec<Positions> {
    layout.shard(TOKENS, world).unwrap()
}

/// Shards of whole blocks that differ in length.
pub(crate) fn uneven() -> Vec<Positions> {
    let of = |blocks: &[usize]| {
        let rows = blocks.iter().flat_map(|block| block * BLOCK..(block + 1) * BLOCK);
        Positions::from_list(&rows.collect::<Vec<_>>()).unwrap()
    };
    vec![of(&[1, 2, 5]), of(&[0, 3, 6, 7]), of(&[4])]
}

pub(crate) fn assert_same(found: &Found, wanted: &Found, what: &str) {
    for (name, (found, wanted)) in
        ["out", "lse", "dq", "dk", "dv"].iter().zip(found.iter().zip(wanted))
    {
        let bits = |t: &Tensor| -> Vec<u32> {
            let all = t.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
            all.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
        };
        assert!(bits(found) == bits(wanted), "{what}: {name} has other bits");
    }
}
