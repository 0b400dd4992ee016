use super::*;
use crate::vector::{Choice, Dispatch, Instructions};

struct AddOne<'a>(Add<'a>);

impl Choice for AddOne<'_> {
    type Output = ();
    fn with<M: Machine>(self, machine: M) {
        machine.call(self.0);
    }
}

/// Numbers of many magnitudes, some 0.
fn numbers(seed: usize, width: usize, spread: f64) -> Vec<f32> {
    let one = |index: usize| {
        let draw = |salt: usize| ((index * 7919 + seed * 104_729 + salt * 31) % 1009) as f64;
        if draw(5) < 90.0 { 0.0 } else { (draw(1) - 504.0) * (draw(2) / 1009.0 * spread).exp2() }
    };
    (0..width).map(|index| one(index) as f32).collect()
}

fn sum(
    instructions: Instructions,
    width: usize,
    terms: &[(Vec<f32>, i32)],
    order: impl Iterator<Item = usize>,
) -> Vec<u32> {
    let mut row = vec![0; length(width)];
    for index in order {
        let (numbers, shift) = &terms[index];
        let add = Add { row: &mut row, numbers, factor: 0.7, shift: *shift };
        instructions.with(false, AddOne(add));
    }
    row
}

fn terms(width: usize) -> Vec<(Vec<f32>, i32)> {
    (0..40)
        .map(|term| {
            let small = (term as f32 * -3.0).exp2();
            let numbers = numbers(term, width, 20.0).into_iter().map(|x| x * small).collect();
            (numbers, (term % 3) as i32 - 1)
        })
        .collect()
}

#[test]
fn sums_are_the_same_bits_in_every_order_and_with_all_instructions() {
    for width in [1, 16, 37, 64] {
        let terms = terms(width);
        let first = sum(Instructions::Portable, width, &terms, 0..40);
        for instructions in Instructions::tested() {
            for step in [1, 3, 7, 11, 39] {
                // Multiples of a number modulo a prime: every index once, in another order.
                let order = (1..=40).map(|index| index * step % 41 - 1);
                assert_eq!(first, sum(instructions, width, &terms, order));
            }
        }
        let mut parts = sum(Instructions::Portable, width, &terms, 20..40);
        join(&mut parts, &sum(Instructions::Portable, width, &terms, 0..13));
        join(&mut parts, &sum(Instructions::Portable, width, &terms, 13..20));
        assert_eq!(first, parts);
    }
}

#[test]
fn sums_are_as_near_to_f64_as_their_bins_go() {
    let width = 48;
    let terms = terms(width);
    let row = sum(Instructions::Portable, width, &terms, 0..40);
    let mut found = vec![0.0; width];
    read(&row, &mut found);
    let product = |x: f32, shift: i32| f64::from(x * 0.7) * f64::from(WIDTH * shift).exp2();
    let most =
        terms.iter().flat_map(|(numbers, shift)| numbers.iter().map(|x| product(*x, *shift).abs()));
    let most = most.fold(0.0, f64::max);
    for (index, found) in found.iter().enumerate() {
        let wanted: f64 =
            terms.iter().map(|(numbers, shift)| product(numbers[index], *shift)).sum();
        let error = (f64::from(*found) - wanted).abs();
        assert!(error <= most * 2.0_f64.powi(-26) * 40.0 + wanted.abs() * 6e-8, "{error:e}");
    }
}

#[test]
fn what_is_no_number_or_too_large_makes_its_row_nan() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::MAX] {
        let mut row = sum(Instructions::Portable, 3, &[(vec![1.0, bad, 2.0], 0)], 0..1);
        let good = sum(Instructions::Portable, 3, &[(vec![1.0; 3], 0)], 0..1);
        join(&mut row, &good);
        let mut found = [0.0; 3];
        read(&row, &mut found);
        assert!(found.iter().all(|x| x.is_nan()), "{bad}");
    }
    let mut found = [1.0; 3];
    read(&vec![0; length(3)], &mut found);
    assert_eq!(found, [0.0; 3]);
}

#[test]
fn the_smallest_numbers_count() {
    let smallest = f32::from_bits(1 << 20);
    let row = sum(Instructions::Portable, 2, &[(vec![smallest, -smallest], 0)], 0..1);
    let mut found = [0.0; 2];
    read(&row, &mut found);
    assert!(
        found[0] > 0.0 && found[1] == -found[0] && (found[0] / (0.7 * smallest) - 1.0).abs() < 0.1
    );
}
