//! Random numbers as a pure function of what they are for: the same on any number of ranks, nothing to save.

/// What a draw is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// The experiment's seed.
    pub seed: u64,
    /// `init`, `order`, `recall`, …
    pub purpose: &'a str,
    /// A parameter's name, or whatever else tells draws apart.
    pub name: &'a str,
}

/// `len` standard normal numbers from index `start` on, by counter (Philox 4x32-10, Salmon et al. 2011).
pub fn normal(_key: Key<'_>, _start: u64, _len: usize) -> Vec<f32> {
    todo!()
}

/// A uniform integer below `below` at `index`, without bias.
pub fn uniform(_key: Key<'_>, _index: u64, _below: u64) -> u64 {
    todo!()
}
