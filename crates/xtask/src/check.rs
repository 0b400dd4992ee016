//! What must hold before any test runs; the cheapest first.

use anyhow::Result;

use crate::{arrows, deny, sizes, tool};

/// Format, sizes, arrows, lints, documentation, dependencies.
pub(crate) fn run() -> Result<()> {
    tool::cargo(&["fmt", "--all", "--check"])?;
    sizes::run()?;
    arrows::run()?;
    tool::cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "--deny",
        "warnings",
    ])?;
    deny::run()
}
