//! Every test, after what they need has been set up.

use anyhow::Result;

use crate::{setup, tool};

/// Runs every test of the workspace, then the examples in its documentation.
pub(crate) fn run() -> Result<()> {
    setup::tensorboard()?;
    tool::cargo(&["test", "--workspace", "--features", "annulus-ops/emulator", "--quiet"])
}
