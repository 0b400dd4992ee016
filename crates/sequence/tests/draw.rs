//! Drawings, as they look.

use annulus_sequence::{Layout, Mask, Return, Rule, Strategy, draw_layout, draw_schedule};

#[test]
fn zigzag_over_four_ranks() {
    let drawn = draw_layout(Layout::Zigzag, &Mask::causal(), 16, 4).unwrap();
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
136 pairs; the busiest rank has 1.00 times its share";
    assert_eq!(drawn, expected);
}

#[test]
fn stripes_list_the_first_and_the_last() {
    let drawn = draw_layout(Layout::Striped { width: 2 }, &Mask::full(), 64, 4).unwrap();
    assert!(drawn.contains("  2-3, 10-11, .. 58-59\n"), "{drawn}");
    assert!(drawn.contains("rank 3   ■ 256    ■ 256    ■ 256    ■ 256      x 1.00\n"), "{drawn}");
}

#[test]
fn a_ring_against_the_forward_one() {
    let mask = Mask::causal();
    let schedule = Strategy::Ring.backward(&mask, 12, 3, 1, Return::Reversed).unwrap();
    let expected = "\
ring backward over 3 ranks, hop by hop
tile with the keys of a rank: ■ all visible, ◪ some, · none
k keys and values, g gradients, > sent to, + added to the gradients of a rank

         rank 0      rank 1      rank 2
hop 0    ◪0          ◪1          ◪2
         k0 > 2      k1 > 0      k2 > 1
hop 1    ·1          ·2          ■0
         k1 > 2      k2 > 0      k0 > 1
         +g1         +g2         +g0
hop 2                ■0          ■1
         g1 > 2      g2 > 0      g0 > 1
                     +g0         +g1
hop 3    g2 > 2      g0 > 0      g1 > 1
         +g0         +g1         +g2";
    assert_eq!(draw_schedule(&schedule), expected);
}

#[test]
fn everything_gathered() {
    let schedule =
        Strategy::AllGather.backward(&Mask::causal(), 12, 3, 1, Return::default()).unwrap();
    let drawn = draw_schedule(&schedule);
    assert!(drawn.contains("\n         all-gather of k\n"), "{drawn}");
    assert!(
        drawn.ends_with("hop 1    ·1 ·2       ■0 ·2       ■0 ■1\nhop 2    reduce-scatter of g")
    );
}

#[test]
fn drawings_fit_a_hundred_columns_and_a_few_screens() {
    let window = Mask::causal().and(Rule::Window(1 << 20));
    for world in [1, 2, 5, 8, 9, 33, 64] {
        let tokens = (1 << 26) * world;
        let mut drawings = Vec::new();
        for strategy in Strategy::ALL.into_iter().skip(usize::from(world > 1)) {
            drawings.push(draw_layout(strategy.layout(), &window, tokens, world).unwrap());
            for how in [Return::Travelling, Return::Reversed] {
                let backward = strategy.backward(&window, tokens, world, 8, how).unwrap();
                drawings.push(draw_schedule(&backward));
            }
        }
        for drawn in drawings {
            let widest = drawn.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= 100, "{widest} columns:\n{drawn}");
            assert!(drawn.lines().count() < 2 * 64 + 10);
            assert!(drawn.lines().all(|line| line == line.trim_end()));
        }
    }
}
