//! Checks that no test is written where none is run: in targets of which no test program is built, `test = false` in their manifest.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cargo_metadata::{MetadataCommand, Package, Target};

use crate::tool;

/// What a test begins with; in two pieces, because this file is searched, too.
const TEST: &str = concat!("#[", "test]");

/// Fails with every file that has a test which is not run.
pub(crate) fn run() -> Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let mut found = Vec::new();
    for package in &metadata.packages {
        for folder in untested(package) {
            for path in tool::files(folder)? {
                let text = || fs::read_to_string(&path).with_context(|| path.display().to_string());
                if tool::ending(&path) == "rs" && text()?.contains(TEST) {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    if !found.is_empty() {
        bail!(
            "tests that are not run: take `test = false` out of the manifest\n  {}",
            found.join("\n  ")
        );
    }
    Ok(())
}

/// The folders of the libraries and programs of which no test program is built.
fn untested(package: &Package) -> impl Iterator<Item = &Path> {
    let folder = |target: &Target| target.src_path.parent().map(ToOwned::to_owned);
    let tested: Vec<_> = package.targets.iter().filter(|target| target.test).map(folder).collect();
    let built = |target: &&Target| target.is_lib() || target.is_bin();
    let none = package
        .targets
        .iter()
        .filter(built)
        .filter(move |target| !tested.contains(&folder(target)));
    none.filter_map(|target| Some(target.src_path.parent()?.as_std_path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_without_a_test_program_are_searched_and_others_not() {
        let metadata = MetadataCommand::new().no_deps().exec().unwrap();
        let folders: Vec<_> = metadata.packages.iter().flat_map(untested).collect();
        let searched = |name: &str| folders.contains(&crate::root().join(name).as_path());
        assert!(searched("crates/attention/src"), "{folders:?}");
        // The library beside the program `annulus` has tests, and the program has none.
        assert!(!searched("crates/ops/src") && !searched("crates/cli/src"), "{folders:?}");
        run().unwrap();
    }
}
