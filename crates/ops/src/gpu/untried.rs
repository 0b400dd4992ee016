//! Kernels that no GPU has run yet: right on the emulator, and used only on request.

use super::Generation;

/// The environment variable that names the generation of untried kernels to use.
pub const UNTRIED: &str = "ANNULUS_UNTRIED_KERNELS";

/// The generations that [`UNTRIED`] may name.
const NAMES: [(&str, Generation); 1] = [("sm100", Generation::Sm100)];

/// The highest generation that a GPU has run.
const TRIED: Generation = Generation::Sm90;

/// The highest generation to use where none is named: programs call [`check`] first.
pub(super) fn highest() -> Generation {
    asked().ok().flatten().unwrap_or(TRIED)
}

/// Checks the value of [`UNTRIED`].
///
/// # Errors
/// What is wrong with it.
pub fn check() -> Result<(), String> {
    asked().map(|_| ())
}

/// Checks that the kernels that [`UNTRIED`] asks for run where there is code for `architecture`.
///
/// # Errors
/// That they do not.
#[cfg(feature = "cuda")]
pub(super) fn check_for(architecture: u32) -> Result<(), String> {
    asked().and_then(|asked| asked.map_or(Ok(()), |generation| runs(generation, architecture)))
}

#[cfg(any(feature = "cuda", test))]
fn runs(generation: Generation, architecture: u32) -> Result<(), String> {
    if generation.runs_on(architecture) {
        return Ok(());
    }
    let found = NAMES.iter().find(|(_, known)| *known == generation);
    let name = found.map_or("?", |(name, _)| *name);
    Err(format!("{UNTRIED}={name}: this program has code of sm_{architecture} for the GPU"))
}

/// Whether there are untried kernels for a GPU of this architecture.
pub fn there_are_for(architecture: u32) -> bool {
    NAMES.iter().any(|(_, generation)| generation.runs_on(architecture))
}

fn asked() -> Result<Option<Generation>, String> {
    std::env::var_os(UNTRIED).map_or(Ok(None), |word| named(&word.to_string_lossy()).map(Some))
}

fn named(word: &str) -> Result<Generation, String> {
    let found = NAMES.iter().find(|(name, _)| *name == word);
    let known = NAMES.map(|(name, _)| name).join(", ");
    found
        .map(|(_, generation)| *generation)
        .ok_or_else(|| format!("{UNTRIED}=`{word}`: there are {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        assert_eq!(named("sm100"), Ok(Generation::Sm100));
        assert_eq!(
            named("sm1000"),
            Err("ANNULUS_UNTRIED_KERNELS=`sm1000`: there are sm100".into())
        );
        assert_eq!(runs(Generation::Sm100, 103), Ok(()));
        assert_eq!(
            runs(Generation::Sm100, 80),
            Err("ANNULUS_UNTRIED_KERNELS=sm100: this program has code of sm_80 for the GPU".into())
        );
        assert_eq!([90, 100, 103, 120].map(there_are_for), [false, true, true, false]);
    }
}
