//! Sets of vector instructions.

/// Sets of vector instructions by name: those of the processor, or fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Products of bf16 pairs, for bf16 inputs, and AVX-512.
    Avx512Bf16,
    /// Vectors of 16 floats.
    Avx512,
    /// Vectors of 8 floats and fused multiply-add.
    Avx2,
    /// Vectors of 4 floats.
    Neon,
    /// Whatever the compiler makes of plain arithmetic.
    Portable,
}

impl Instructions {
    /// All, best first.
    pub const ALL: [Instructions; 5] = [
        Instructions::Avx512Bf16,
        Instructions::Avx512,
        Instructions::Avx2,
        Instructions::Neon,
        Instructions::Portable,
    ];

    /// Their names in files, in the same order.
    pub const WORDS: [&str; 5] = ["avx512-bf16", "avx512", "avx2", "neon", "portable"];

    /// The best that the processor has.
    pub fn detect() -> Instructions {
        Instructions::available().next().unwrap_or(Instructions::Portable)
    }

    /// All that the processor has, best first.
    pub fn available() -> impl Iterator<Item = Instructions> {
        Instructions::ALL.into_iter().filter(|one| one.is_available())
    }

    /// The same for tests, which say aloud what they leave out.
    #[expect(clippy::print_stdout, reason = "what a run of tests leaves out is to be seen")]
    pub fn tested() -> impl Iterator<Item = Instructions> {
        for lacking in Instructions::ALL.into_iter().filter(|one| !one.is_available()) {
            println!("skipped: this processor has no {}", lacking.word());
        }
        Instructions::available()
    }

    /// Whether the processor has them.
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

    /// Their name in files and on the command line.
    pub fn word(self) -> &'static str {
        Instructions::WORDS[self as usize]
    }

    /// Those of this name.
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
