//! Drawings, compared character by character.

use annulus_sequence::{
    Detail, Heads, Layout, Mask, Route, Rule, Strategy, draw_schedule, draw_sharded,
};

fn draw_layout(layout: Layout, mask: &Mask, tokens: usize, world: usize) -> String {
    draw_sharded(layout, mask, &layout.shard(tokens, world).expect("a layout that can be sharded"))
}

#[test]
fn zigzag_over_four_ranks() {
    let drawn = draw_layout(Layout::Zigzag, &Mask::causal(), 16, 4);
    let expected = "\
16 positions over 4 ranks as zigzag chunks, 4 each

rank 0   ██············██  0-1, 14-15
rank 1   ··██········██··  2-3, 12-13
rank 2   ····██····██····  4-5, 10-11
rank 3   ······████······  6-9

visible pairs of queries (down) and keys (across): ■ all, ◪ some, · none
         rank 0   rank 1   rank 2   rank 3
rank 0   ◪ 10     ◪ 8      ◪ 8      ◪ 8        x 1.00
rank 1   ◪ 8      ◪ 10     ◪ 8      ◪ 8        x 1.00
rank 2   ◪ 8      ◪ 8      ◪ 10     ◪ 8        x 1.00
rank 3   ◪ 8      ◪ 8      ◪ 8      ◪ 10       x 1.00
136 visible pairs; the busiest rank has 1.00 times an even share";
    assert_eq!(drawn, expected);
}

#[test]
fn shards_of_different_lengths_say_so() {
    let drawn = draw_layout(Layout::Contiguous, &Mask::full(), 7, 3);
    assert!(drawn.starts_with("7 positions over 3 ranks as contiguous chunks, 2 to 3 each\n"));
}

#[test]
fn stripes_list_the_first_and_the_last() {
    let drawn = draw_layout(Layout::Striped { width: 2 }, &Mask::full(), 64, 4);
    assert!(drawn.contains("  2-3, 10-11, .. 58-59\n"), "{drawn}");
    assert!(drawn.contains("rank 3   ■ 256    ■ 256    ■ 256    ■ 256      x 1.00\n"), "{drawn}");
}

fn schedules(strategy: Strategy, tokens: usize, world: usize, heads: Heads) -> [String; 2] {
    let split = strategy.split(&Mask::causal(), tokens, world, heads).expect("it splits");
    let backward = strategy.backward(&split, Route::Reversed).expect("it runs");
    [strategy.forward(&split).expect("it runs"), backward]
        .map(|schedule| draw_schedule(&schedule, Detail::Short))
}

#[test]
fn a_ring_against_the_forward_one() {
    let [_, drawn] = schedules(Strategy::Ring, 12, 3, Heads::equal(1));
    let expected = "\
ring backward over 3 ranks, hop by hop
tile with the keys of a rank: ■ all visible, ◪ some, · none;
of others' queries as q:k
k keys and values, q queries, o outputs, gk gq their gradients;
> sent to, + comes and is added

         rank 0      rank 1      rank 2
hop 0    ◪0          ◪1          ◪2
         k0 > 2      k1 > 0      k2 > 1
hop 1                            ■0
         k1 > 2      k2 > 0      k0 > 1
hop 2                ■0          ■1
         gk1 > 2     gk2 > 0     gk0 > 1
         +gk2        +gk0        +gk1
hop 3    gk2 > 2     gk0 > 0     gk1 > 1
         +gk0        +gk1        +gk2";
    assert_eq!(drawn, expected);
}

#[test]
fn everything_gathered() {
    let [_, drawn] = schedules(Strategy::ALL_GATHER, 12, 3, Heads::equal(1));
    assert!(drawn.contains("\n         all-gather of k\n"), "{drawn}");
    let end = "hop 1                ■0          ■0 ■1\nhop 2    reduce-scatter of gk";
    assert!(drawn.ends_with(end), "{drawn}");
}

#[test]
fn heads_for_positions() {
    let [forward, backward] = schedules(Strategy::Ulysses, 8, 2, Heads::equal(2));
    let expected = "\
         rank 0      rank 1
hop 0    all-to-all of q k
hop 1    3 tiles     ◪0:0 ■0 ◪1
hop 2    all-to-all of o";
    assert!(forward.ends_with(expected), "{forward}");
    assert!(backward.ends_with("all-to-all of gq gk"), "{backward}");
}

#[test]
fn drawings_fit_80_columns_and_a_few_screens() {
    let window = Mask::causal().and(Rule::Window(1 << 20));
    for world in [1, 2, 5, 8, 9, 33, 64] {
        let tokens = (1 << 26) * world;
        let mut drawings = Vec::new();
        for strategy in Strategy::ALL.into_iter().skip(usize::from(world > 1)) {
            drawings.push(draw_layout(strategy.layout(), &window, tokens, world));
            let split = strategy.split(&window, tokens, world, Heads::equal(2 * world)).unwrap();
            for how in [Route::Travelling, Route::Reversed] {
                drawings
                    .push(draw_schedule(&strategy.backward(&split, how).unwrap(), Detail::Short));
            }
        }
        for drawn in drawings {
            let widest = drawn.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= 80, "{widest} columns:\n{drawn}");
            assert!(drawn.lines().count() < 2 * 64 + 10);
            assert!(drawn.lines().all(|line| line == line.trim_end()));
        }
    }
}

#[test]
fn nothing_is_left_out_of_the_whole() {
    let split = Strategy::Ring.split(&Mask::causal(), 52, 13, Heads::equal(1)).unwrap();
    let schedule = Strategy::Ring.backward(&split, Route::Reversed).unwrap();
    let short = draw_schedule(&schedule, Detail::Short);
    assert!(short.ends_with("(6 of 13 ranks and 8 of 14 hops are drawn; `--all`: all)"), "{short}");
    let whole = draw_schedule(&schedule, Detail::Whole);
    assert_eq!(whole.matches("hop 13 ").count(), 3, "one for each six ranks: {whole}");
    assert!((0..13).all(|rank| whole.contains(&format!("rank {rank}"))), "{whole}");
    // What a cell has no room for goes on below.
    let split = Strategy::Ulysses.split(&Mask::causal(), 8, 2, Heads::equal(2)).unwrap();
    let whole = draw_schedule(&Strategy::Ulysses.forward(&split).unwrap(), Detail::Whole);
    assert!(whole.contains("hop 1    ◪0 ■1:0     ") && !whole.contains(" tiles"), "{whole}");
}

#[test]
fn stripes_of_long_sequences_are_drawn_position_by_position() {
    let drawn = draw_layout(Layout::Striped { width: 1 }, &Mask::causal(), 1 << 20, 8);
    assert!(drawn.contains("rank 0   █·······█·······"), "{drawn}");
    assert!(drawn.contains("of 1048576 positions, one by one)"), "{drawn}");
    assert!(drawn.lines().all(|line| line.chars().count() <= 80), "{drawn}");
}
