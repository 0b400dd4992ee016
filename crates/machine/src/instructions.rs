//! Sets of vector instructions.

/// A set of vector instructions: the processor's best, or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Products of bf16 pairs, for bf16 inputs, beside AVX-512.
    Avx512Bf16,
    /// AVX-512: vectors of 16 floats.
    Avx512,
    /// AVX2: vectors of 8 floats and fused multiply-add.
    Avx2,
    /// NEON: vectors of 4 floats.
    Neon,
    /// What the compiler makes of plain arithmetic.
    Portable,
}

impl Instructions {
    /// All sets, best first.
    pub const ALL: [Instructions; 5] = [
        Instructions::Avx512Bf16,
        Instructions::Avx512,
        Instructions::Avx2,
        Instructions::Neon,
        Instructions::Portable,
    ];

    /// The names of all sets in files, in the order of [`Instructions::ALL`].
    pub const WORDS: [&str; 5] = ["avx512-bf16", "avx512", "avx2", "neon", "portable"];

    /// The best set that the processor has.
    pub fn detect() -> Instructions {
        Instructions::available().next().unwrap_or(Instructions::Portable)
    }

    /// All sets that the processor has, best first.
    pub fn available() -> impl Iterator<Item = Instructions> {
        Instructions::ALL.into_iter().filter(|one| one.is_available())
    }

    /// All instruction sets that the processor has, best first, for tests: prints those that are skipped.
    #[expect(clippy::print_stdout, reason = "what a run of tests leaves out is to be seen")]
    pub fn tested() -> impl Iterator<Item = Instructions> {
        for lacking in Instructions::ALL.into_iter().filter(|one| !one.is_available()) {
            println!("skipped: this processor has no {}", lacking.word());
        }
        Instructions::available()
    }

    /// Whether the processor has this set.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512Bf16 => {
                Instructions::Avx512.is_available() && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
            }
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Instructions::Portable => true,
            _ => false,
        }
    }

    /// The name in files and on the command line.
    pub fn word(self) -> &'static str {
        Instructions::WORDS[self as usize]
    }

    /// The set of this name.
    pub fn from_word(word: &str) -> Option<Instructions> {
        Instructions::ALL.into_iter().find(|one| one.word() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_instructions_has_a_name_of_its_own() {
        for one in Instructions::ALL {
            assert_eq!(Instructions::from_word(one.word()), Some(one));
        }
        assert_eq!(Instructions::Avx512Bf16.word(), "avx512-bf16");
        assert_eq!(Instructions::Neon.word(), "neon");
        assert!(Instructions::Portable.is_available());
        assert_eq!(Some(Instructions::detect()), Instructions::available().next());
    }
}
