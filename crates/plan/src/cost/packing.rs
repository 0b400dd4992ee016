//! Memory that matrix products pack their operands into: a function of shapes and a core's caches.

use annulus_machine::blocks::{Cut, FEW_ROWS};

use super::{F32, Share, product, sum};

/// Rows, columns and depth of a matrix product.
type Sizes = [u64; 3];

impl Share<'_> {
    /// The most bytes that any one of `products` packs its operands into.
    pub(super) fn packing(&self, products: &[Sizes]) -> u64 {
        self.most(products, |cut| cut.floats(self.workers))
    }

    /// Bytes for a product of `rows` rows with a weight of `columns` outputs and `depth` inputs: few rows are computed as the transpose, in
    /// a buffer of its own.
    pub(super) fn projecting(&self, rows: u64, columns: u64, depth: u64) -> u64 {
        if !self.is_turned(rows) {
            return self.packing(&[[rows, columns, depth]]);
        }
        sum([product(&[rows, columns, F32]), self.packing(&[[columns, rows, depth]])])
    }

    /// Whether a CPU computes a product of so many rows with a weight as its transpose.
    fn is_turned(&self, rows: u64) -> bool {
        let on_gpu = self.plan.experiment.host.computes_on_gpus();
        !on_gpu && rows < FEW_ROWS as u64
    }

    /// The most bytes that each worker beyond the first packs operands into.
    pub(crate) fn packing_of_worker(&self) -> u64 {
        let (shape, vocabulary) = (&self.plan.own, self.plan.own_vocabulary());
        let [h, f] = [shape.hidden_size, shape.intermediate_size].map(|size| size as u64);
        let [piece, chunk] =
            [self.memory.mlp_chunk, self.memory.loss_chunk].map(|rows| self.rows.min(rows as u64));
        let (a, k) = (shape.query_width(), shape.key_value_width());
        let projections =
            [(self.rows, h, a), (self.rows, h, k), (piece, h, f), (chunk, h, vocabulary)];
        let products = projections.map(|(rows, h, width)| {
            let turned = if self.is_turned(rows) { [width, rows, h] } else { [rows, width, h] };
            [turned, [rows, width, h], [rows, h, width], [width, h, rows], [h, width, rows]]
        });
        self.most(products.as_flattened(), |cut| cut.left() + cut.edge())
    }

    fn most(&self, products: &[Sizes], floats: impl Fn(Cut) -> usize) -> u64 {
        let host = &self.plan.experiment.host;
        // A GPU's library has its own workspace.
        if host.computes_on_gpus() {
            return 0;
        }
        let bytes = |sizes: &Sizes| {
            F32 * floats(Cut::new(sizes.map(|size| size as usize), &host.core.caches)) as u64
        };
        products.iter().map(bytes).max().unwrap_or_default()
    }
}
