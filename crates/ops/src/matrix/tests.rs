//! Products against sums in f64, for every kernel that the processor can run, any caches and any number of workers.

use annulus_machine::{Caches, Core, Instructions};

use super::*;

const CACHES: Caches = Caches { first: 32 << 10, second: 1 << 20, third: 0 };

fn values(seed: usize, count: usize) -> Vec<f32> {
    let value = |index| ((index * 7919 + seed * 104_729) % 2003) as f32 / 1000.0 - 1.0;
    (0..count).map(value).collect()
}

/// A factor of the given shape, as it is stored or transposed.
fn factor(data: &[f32], [rows, columns]: [usize; 2], turned: bool) -> Matrix<'_> {
    if turned {
        Matrix::new(data, columns, rows).transposed()
    } else {
        Matrix::new(data, rows, columns)
    }
}

/// A case `onto + a b` of [rows, columns, depth], with each factor transposed or not.
struct Case {
    sizes: [usize; 3],
    turned: [bool; 2],
}

impl Case {
    fn factors(&self) -> [Vec<f32>; 2] {
        let [rows, columns, depth] = self.sizes;
        [values(1, rows * depth), values(2, depth * columns)]
    }

    fn product(&self, pool: &Pool, output: &mut [f32], onto: Output<'_>) {
        let [rows, columns, depth] = self.sizes;
        let [a, b] = self.factors();
        let a = factor(&a, [rows, depth], self.turned[0]);
        let b = factor(&b, [depth, columns], self.turned[1]);
        multiply(pool, vec![Product { terms: vec![(a, b), (a, b)], onto, output }]);
    }

    /// The sum in f64, and the sum of its terms' magnitudes.
    fn wanted(&self, row: usize, column: usize) -> (f64, f64) {
        let [rows, columns, depth] = self.sizes;
        let [a, b] = self.factors();
        let a = |d| a[if self.turned[0] { d * rows + row } else { row * depth + d }];
        let b = |d| b[if self.turned[1] { column * depth + d } else { d * columns + column }];
        let terms = || (0..depth).map(|d| 2.0 * f64::from(a(d)) * f64::from(b(d)));
        (terms().sum(), terms().map(f64::abs).sum())
    }
}

fn pool(workers: usize, instructions: Instructions, second: usize) -> Pool {
    let caches = CACHES.with_second(second);
    Pool::new(workers).with(Core { caches, instructions }).unwrap()
}

#[test]
fn products_agree_with_sums_in_f64_on_every_kernel() {
    let shapes =
        [[1, 1, 1], [1, 40, 300], [13, 17, 5], [70, 33, 257], [130, 530, 20], [64, 16, 48]];
    for instructions in Instructions::tested() {
        for sizes in shapes {
            for turned in [[false, false], [false, true], [true, false], [true, true]] {
                let case = Case { sizes, turned };
                let [rows, columns, depth] = sizes;
                let (matrix, row) = (values(3, rows * columns), values(4, columns));
                for onto in [
                    Output::Overwrite,
                    Output::Accumulate,
                    Output::AddRow(&row),
                    Output::AddMatrix(&matrix),
                ] {
                    let mut output = vec![0.5; rows * columns];
                    case.product(&pool(2, instructions, 1 << 20), &mut output, onto);
                    for index in (0..rows * columns).step_by(1 + rows * columns / 97) {
                        let start = match onto {
                            Output::Overwrite => 0.0,
                            Output::Accumulate => 0.5,
                            Output::AddRow(row) => row[index % columns],
                            Output::AddMatrix(matrix) => matrix[index],
                        };
                        let (sum, magnitude) = case.wanted(index / columns, index % columns);
                        let error = (f64::from(output[index]) - f64::from(start) - sum).abs();
                        let roundings = 2.0 + (depth as f64).sqrt();
                        let allowed = f64::from(f32::EPSILON) * roundings * (1.0 + magnitude);
                        assert!(
                            error < allowed,
                            "{instructions:?} {sizes:?} {turned:?}: {error:e}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn products_have_the_same_bits_for_any_caches_workers_and_widths_of_vectors() {
    let case = Case { sizes: [1100, 50, 600], turned: [false, true] };
    let bits = |pool: &Pool| -> Vec<u32> {
        let mut output = vec![0.0; 1100 * 50];
        case.product(pool, &mut output, Output::Overwrite);
        output.into_iter().map(f32::to_bits).collect()
    };
    let best = Instructions::detect();
    let wanted = bits(&pool(1, best, 1 << 20));
    for second in [16 << 10, 256 << 10, 2 << 20, 4 << 20] {
        assert!(bits(&pool(3, best, second)) == wanted, "a second cache of {second}");
    }
    // Without a fused multiply-add, products are rounded before they are added.
    for instructions in Instructions::tested().filter(|one| *one != Instructions::Portable) {
        assert!(bits(&pool(2, instructions, 1 << 20)) == wanted, "{instructions:?}");
    }
}

#[test]
fn a_product_over_nothing_is_nothing() {
    let case = Case { sizes: [3, 4, 0], turned: [false, false] };
    let mut output = vec![7.0; 12];
    case.product(&Pool::serial(), &mut output, Output::Accumulate);
    assert_eq!(output, [7.0; 12]);
    case.product(&Pool::serial(), &mut output, Output::Overwrite);
    assert_eq!(output, [0.0; 12]);
}
