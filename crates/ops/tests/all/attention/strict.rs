//! Order-free attention: the same bits however blocks of positions are shared out and in whatever order they meet, and dense
//! attention's results.

use annulus_ops::attention::{
    Attended, AttentionKernel, BackwardTile, Dropout, Dropped, Fused, Instructions, Tile,
    dense_dropped,
};
use annulus_ops::order_free::{add_sums, values};
use annulus_ops::{Backend, Pool};
use annulus_sequence::{Layout, Mask, Positions, Rule, View};
use candle_core::{DType, Tensor};

use super::support::{Case, Heads, TOLERANCE, rows};
use annulus_ops::testing::error_l2;

const BLOCK: usize = 32;
const TOKENS: usize = 256;

/// Output, log-sum-exp, and gradients of queries, keys and values, of all positions.
type Found = [Tensor; 5];

struct Split<'a> {
    kernel: &'a Fused,
    mask: &'a Mask,
    shards: Vec<Positions>,
    dropout: Option<Dropout>,
    /// Which shard's keys a shard meets first.
    first: usize,
}

fn kernel(workers: usize, instructions: Instructions) -> Fused {
    Fused { pool: Pool::new(workers).in_blocks(Some(BLOCK)), instructions }
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

    fn run(&self, case: &Case) -> Found {
        let (mut all, mut keys): (Vec<Vec<Tensor>>, Vec<Option<[Tensor; 2]>>) =
            (Vec::new(), vec![None; self.shards.len()]);
        for index in 0..self.shards.len() {
            let (attended, dq) = self.of_queries(case, index, &mut keys);
            all.push(vec![attended.out, attended.lse.unsqueeze(3).unwrap(), dq]);
        }
        let serial = Backend::serial();
        for ((row, keys), own) in all.iter_mut().zip(keys).zip(&self.shards) {
            // Nobody sees keys that are padding.
            let zeros = || rows(&case.k, own).zeros_like().unwrap().to_dtype(DType::F32).unwrap();
            row.extend(match keys {
                Some(sums) => sums.map(|sums| values(&serial, &sums).unwrap()),
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
            Tensor::cat(&parts, 2).unwrap().index_select(&order, 2).unwrap()
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
        for at in 0..met.len() {
            self.kernel.forward(&[tile(at)], &mut *state, &|| Ok(())).unwrap();
        }
        let attended = self.kernel.finish(state).unwrap();
        let (q, gradient) = (&own.q, &own.gradient);
        let mut state = self.kernel.begin_backward(q, &attended, gradient, case.scale).unwrap();
        for (at, (of, view)) in met.iter().enumerate() {
            assert!(view.keys.rows.are_all_of(self.shards[*of].tokens()));
            let tiles = vec![BackwardTile { tile: tile(at), carried: None }];
            let made = self.kernel.backward(tiles, &mut *state, &|| Ok(())).unwrap().remove(0);
            let made = [made.dk, made.dv];
            match &sums[*of] {
                Some(sums) => sums.iter().zip(&made).for_each(|(to, from)| {
                    add_sums(&Backend::serial(), to, from).unwrap();
                }),
                None => sums[*of] = Some(made),
            }
        }
        let dq = self.kernel.finish_backward(state).unwrap();
        (attended, values(&Backend::serial(), &dq).unwrap())
    }
}

fn masks() -> Vec<(&'static str, Mask)> {
    vec![
        ("full", Mask::full()),
        ("causal", Mask::causal()),
        ("window", Mask::causal().and(Rule::Window(41))),
        ("documents", Mask::causal().and(Rule::documents(&[100, 7, 149]))),
        ("sinks", Mask::causal().and(Rule::Window(20)).and(Rule::Sinks(3))),
        ("padding", Mask::full().and(Rule::KeyPadding(vec![90]))),
        ("nothing", Mask::causal().and(Rule::KeyPadding(vec![0]))),
    ]
}

fn shards(layout: Layout, world: usize) -> Vec<Positions> {
    layout.shard(TOKENS, world).unwrap()
}

/// Shards of whole blocks that differ in length.
fn uneven() -> Vec<Positions> {
    let of = |blocks: &[usize]| {
        let rows = blocks.iter().flat_map(|block| block * BLOCK..(block + 1) * BLOCK);
        Positions::from_list(&rows.collect::<Vec<_>>()).unwrap()
    };
    vec![of(&[1, 2, 5]), of(&[0, 3, 6, 7]), of(&[4])]
}

fn assert_same(found: &Found, wanted: &Found, what: &str) {
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

#[test]
fn the_same_bits_however_blocks_are_shared_out() {
    for heads in [Heads(1, 2, 1, 64), Heads(2, 3, 3, 20)] {
        let case = Case::random(heads, TOKENS, TOKENS);
        for (name, mask) in masks() {
            for case in [case.clone(), case.rounded(DType::BF16)] {
                let of = |workers, shards, first| {
                    let kernel = kernel(workers, Instructions::detect());
                    let dropout = None;
                    Split { kernel: &kernel, mask: &mask, shards, dropout, first }.run(&case)
                };
                let one = of(1, vec![Positions::all(TOKENS)], 1);
                let splits = [
                    (2, shards(Layout::Contiguous, 4), 3),
                    (1, shards(Layout::Striped { width: BLOCK }, 3), 1),
                    (3, shards(Layout::Zigzag, 4), 2),
                    (2, uneven(), 1),
                ];
                for (workers, shards, first) in splits {
                    let what = format!("{heads:?}, {name}, {} shards", shards.len());
                    assert_same(&of(workers, shards, first), &one, &what);
                }
            }
        }
    }
}

#[test]
fn results_are_those_of_dense_attention_with_all_instructions() {
    let dropout = Dropout { seed: 3, probability: 0.2, step: 1, layer: 2, sequence: 0, head: 0 };
    for instructions in Instructions::tested() {
        let kernel = kernel(2, instructions);
        for (name, mask) in masks() {
            for dropout in [None, Some(dropout)] {
                let case = Case::random(Heads(1, 4, 2, 24), TOKENS, TOKENS);
                let split =
                    Split { kernel: &kernel, mask: &mask, shards: uneven(), dropout, first: 1 };
                let [out, lse, dq, dk, dv] = split.run(&case);
                let all = Positions::all(TOKENS);
                let tensors = [&case.q, &case.k, &case.v, &case.gradient];
                let wanted =
                    dense_dropped(tensors, &mask, [&all, &all], case.scale, dropout).unwrap();
                let results = super::support::Results {
                    attended: Attended { out, lse: lse.squeeze(3).unwrap() },
                    dq,
                    gradients: Vec::new(),
                };
                let what = format!("{instructions:?}, {name}");
                results.check_with(&wanted, &dk, &dv, TOLERANCE, &what);
            }
        }
    }
}

#[test]
fn sums_are_at_least_as_near_to_f64_as_those_in_one_order() {
    let tokens = 2048;
    let case = Case::random(Heads(1, 1, 1, 32), tokens, tokens);
    let (mask, all) = (Mask::causal(), Positions::all(tokens));
    let wanted = case.dense(&mask, &all, &all);
    let fast = case.run(&Fused::new(Pool::serial()), &[case.shard(&mask, &all, &all)]);
    let kernel = kernel(1, Instructions::detect());
    let split = Split { kernel: &kernel, mask: &mask, shards: vec![all], dropout: None, first: 1 };
    let [out, _, dq, dk, dv] = split.run(&case);
    let of_fast = &fast.gradients[0];
    for (name, strict, fast, wanted) in [
        ("out", &out, &fast.attended.out, &wanted.out),
        ("dq", &dq, &fast.dq, &wanted.dq),
        ("dk", &dk, &of_fast.dk, &wanted.dk),
        ("dv", &dv, &of_fast.dv, &wanted.dv),
    ] {
        let [strict, fast] = [strict, fast].map(|found| error_l2(found, wanted).unwrap());
        println!("{name}: off by {strict:.2e}, in one order by {fast:.2e}");
        assert!(strict <= fast, "{name}: off by {strict:e}, in one order by {fast:e}");
    }
}

#[test]
fn a_tile_that_does_not_say_where_it_is_is_refused() {
    let case = Case::random(Heads(1, 1, 1, 16), TOKENS, TOKENS);
    let kernel = kernel(1, Instructions::detect());
    let all = Positions::all(TOKENS);
    let shard = case.shard(&Mask::causal(), &all, &all);
    let mut state = kernel.begin(&case.q, case.scale).unwrap();
    let error = kernel.forward(&[shard.tile()], &mut *state, &|| Ok(())).unwrap_err();
    assert!(error.to_string().contains("does not say at which positions"), "{error}");
}
