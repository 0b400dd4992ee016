//! How work is cut for a core: sizes that kernels compute with and that plans of memory count with, defined once.
//!
//! What a sum adds, and in which order, depends on no property of the core: only the number of rows of a job follows from its caches. So
//! results have the same bits for any caches.

use crate::Caches;

/// Bytes of an f32.
const F32: usize = 4;

/// Floats of a panel, which are worked on together.
pub const PANEL: usize = 16;
/// Rows of a micro-tile: jobs have multiples of it.
pub const ROWS: usize = 12;
/// Query rows of a block of attention: together with a block of columns, they fit into the second-level cache.
pub const ATTENTION_ROWS: usize = 96;
/// Key columns of a block of attention.
pub const ATTENTION_COLUMNS: usize = 192;
/// Rows that are summed in f32, one after another, before their sum goes to f64.
pub const SUMMED_ROWS: usize = 128;

/// The most terms that an element of a product sums before it is added to the result: with two panels of the right factor they fit into the
/// first-level cache.
pub const DEPTH: usize = 256;
/// Floats of the right factor that are packed at a time, for all workers: a second-level cache of 2 MiB holds them for job after job, and
/// the third level is too slow where a job has few rows.
const RIGHT: usize = 1 << 18;
/// The most columns of the right factor that are packed at a time.
const COLUMNS: usize = RIGHT / DEPTH;
/// The least number of jobs that a product's rows are cut into, where there are enough rows: with fewer, the last one keeps a worker busy
/// while the others wait; with more, the packed right factor is read for few rows each.
const JOBS: usize = 32;
/// The most and the fewest rows of a job. Packing the left factor then costs little.
const JOB_ROWS: [usize; 2] = [24, 240];
/// Floats of the results of a job's last rows, which are fewer than a micro-tile has.
const EDGE: usize = ROWS * EDGE_COLUMNS;
/// Columns of the results of a job's last rows.
pub const EDGE_COLUMNS: usize = 512;
/// Below this number of rows, a product whose right factor lies by columns is computed as its transpose: transposing that factor would take
/// longer.
pub const FEW_ROWS: usize = 64;

/// Sizes of strict blocks: blocks of neighbouring tokens, over which sums have the same bits on any rank.
const STRICT_BLOCKS: [usize; 6] = [512, 256, 128, 64, 32, 16];
/// The least number of strict blocks of a sequence, if it is long enough: every rank holds whole blocks.
const STRICT_LEAST: usize = 32;

/// The most terms of an order-free sum.
pub const STRICT_TERMS: usize = 1 << 18;
/// Elements per row of a table of a parameter's order-free sums, whatever its shape; the last row is padded.
pub const STRICT_ROW: usize = 64;
/// The number of softmax statistics of a token that tensor-parallel ranks exchange, each an f32: of a rank's part of the vocabulary the
/// highest logit, and the sum of exp(logit − highest); and the logit of the target, 0 on ranks whose part does not have it.
pub const SOFTMAX_STATISTICS: usize = 3;
/// Bytes of a squared norm as an order-free sum: an integer for each of 640 exponents, and one more.
pub const NORM_BYTES: u64 = 641 * 8;

/// The largest strict block that divides a sequence into enough blocks: a function of its length alone, since bits follow from it. `None`:
/// no block divides it.
pub fn strict_block(tokens: usize) -> Option<usize> {
    let fits = |block: &usize| tokens > 0 && tokens.is_multiple_of(*block);
    let mut all = STRICT_BLOCKS.into_iter().filter(fits);
    let least = STRICT_BLOCKS.into_iter().rfind(fits);
    all.find(|block| tokens / block >= STRICT_LEAST).or(least)
}

/// The most ids of a text that a rank reads at a time.
pub const READ_IDS: u64 = 1 << 13;
/// Bytes of ready-made batches that are read and hashed at a time.
pub const HASHED: usize = 1 << 16;

/// How a product `[rows, depth] x [depth, columns]` is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Rows of a job.
    pub rows: usize,
    /// Columns that are packed at a time.
    pub columns: usize,
    /// Rows of the right factor that are packed at a time.
    pub packed_depth: usize,
    /// Terms that are summed at a time.
    pub depth: usize,
    /// Jobs that run concurrently.
    pub jobs: usize,
}

impl Cut {
    /// Cuts a product for a core with these caches.
    pub fn new([rows, columns, depth]: [usize; 3], caches: &Caches) -> Cut {
        // A quarter of the second-level cache: panels of the right factor and results pass through it, too.
        let fits = caches.second / 4 / (DEPTH * F32) / ROWS * ROWS;
        let most = fits.clamp(JOB_ROWS[0], JOB_ROWS[1]);
        let all = rows;
        let rows = rows.div_ceil(JOBS).next_multiple_of(ROWS).clamp(ROWS, most);
        let columns = columns.next_multiple_of(PANEL).clamp(PANEL, COLUMNS);
        let packed_depth = (RIGHT / columns / DEPTH * DEPTH).min(depth);
        Cut { rows, columns, packed_depth, depth: DEPTH.min(depth), jobs: all.div_ceil(rows) }
    }

    /// Floats that all workers pack the right factor into.
    pub fn right(&self) -> usize {
        self.columns * self.packed_depth
    }

    /// Floats that every worker packs the left factor into.
    pub fn left(&self) -> usize {
        self.rows * self.depth
    }

    /// Floats that the product packs in all, with this many workers.
    pub fn floats(&self, workers: usize) -> usize {
        self.right() + self.workers(workers) * (self.left() + self.edge())
    }

    /// The number of workers that have a job.
    pub fn workers(&self, workers: usize) -> usize {
        workers.clamp(1, self.jobs.max(1))
    }

    /// Floats of each worker for results at the edges.
    pub fn edge(&self) -> usize {
        EDGE.min(ROWS * self.columns).max(self.rows * PANEL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHES: Caches = Caches { first: 32 << 10, second: 1 << 20, third: 0 };

    #[test]
    fn strict_blocks_follow_from_the_length_alone() {
        let of = |tokens| strict_block(tokens);
        assert_eq!([of(1 << 20), of(4096), of(4032), of(2048)], [512, 128, 64, 64].map(Some));
        assert_eq!(
            [of(1024), of(512), of(48), of(0), of(1000)],
            [Some(32), Some(16), Some(16), None, None]
        );
    }

    #[test]
    fn what_a_product_packs_follows_from_its_shape_and_the_second_cache() {
        let of = |second| Cut::new([16384, 2048, 1024], &CACHES.with_second(second));
        let rows = [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20].map(|bytes| of(bytes).rows);
        assert_eq!(rows, [60, 120, 240, 240, 240]);
        let cut = of(1 << 20);
        assert_eq!((cut.columns, cut.packed_depth, cut.depth), (1024, 256, 256));
        assert_eq!((cut.right(), cut.left(), cut.edge()), (1 << 18, 240 * 256, 12 * 512));
        let wide = Cut::new([1024, 128_000, 2048], &CACHES);
        assert_eq!((wide.rows, wide.columns, wide.packed_depth), (36, 1024, 256));
        let small = Cut::new([1, 1, 3], &CACHES.with_second(1));
        assert_eq!(small, Cut { rows: 12, columns: 16, packed_depth: 3, depth: 3, jobs: 1 });
        assert_eq!((small.right(), small.left(), small.edge()), (48, 36, 192));
        assert_eq!((small.floats(64), cut.floats(2) - cut.floats(1)), (276, 240 * 256 + 12 * 512));
        assert_eq!([1, 2, 64].map(|workers| cut.workers(workers)), [1, 2, 64]);
    }
}
