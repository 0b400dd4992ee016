//! Every reader of what others made, as a function of bytes: for the fuzzer (`cargo xtask attack --fuzz`) and, with a few thousand
//! inputs each, for every test run.
//!
//! A reader may refuse whatever it is given, with an error; it may not panic, hang, or take more than [`MEMORY`].

mod mutate;
mod place;
mod readers;

pub use place::Place;
pub use readers::READERS;

use std::time::{Duration, Instant};

/// Bytes that reading an input may take.
pub const MEMORY: u64 = 300 << 20;
/// How long reading a small input may take on a busy machine.
pub const TIME: Duration = Duration::from_secs(10);
/// The longest input that is tried, bytes.
pub const LONGEST: usize = 12_288;

/// A reader, and inputs that it accepts.
#[derive(Clone, Copy)]
pub struct Reader {
    /// What it reads.
    pub name: &'static str,
    /// Inputs to begin with, which it accepts.
    pub seeds: fn(&Place) -> Vec<Vec<u8>>,
    /// Reads an input; the message of what is wrong with it.
    pub read: fn(&Place, &[u8]) -> Result<(), String>,
}

impl Reader {
    /// The reader of this name.
    pub fn of(name: &str) -> Option<&'static Reader> {
        READERS.iter().find(|reader| reader.name == name)
    }
}

/// Gives every reader its seeds, which it must accept, and so many changed ones, which it may refuse.
///
/// # Panics
/// When a reader does, takes too long, or refuses a seed.
pub fn try_all(inputs: u64) {
    for reader in READERS {
        let place = Place::new();
        let seeds = (reader.seeds)(&place);
        for (index, seed) in seeds.iter().enumerate() {
            let read = (reader.read)(&place, seed);
            assert_eq!(read, Ok(()), "{}: seed {index} is refused", reader.name);
        }
        for number in 0..inputs {
            let input = mutate::changed(&seeds, number);
            let began = Instant::now();
            // Most are refused.
            let _ = (reader.read)(&place, &input);
            let (took, name) = (began.elapsed(), reader.name);
            assert!(took < TIME, "{name}: input {number} took {took:?}: {input:?}");
        }
    }
}
