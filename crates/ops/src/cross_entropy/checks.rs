//! Checks the arguments of the loss.

use candle_core::{DType, Result, Tensor, bail};

use super::IGNORED;

/// Refuses shapes that do not fit.
pub(crate) fn check_shapes(
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
) -> Result<()> {
    let width = weight.dims2()?.1;
    let wanted = [targets.dims(), &[width]].concat();
    if x.dims() != wanted {
        bail!("linear-cross-entropy: found x {:?}, expected {wanted:?}", x.shape());
    }
    if chunk == 0 {
        bail!("linear-cross-entropy: found chunks of 0 tokens, expected 1 or more");
    }
    if targets.dtype() != DType::I64 {
        bail!("linear-cross-entropy: found targets of {:?}, wanted I64", targets.dtype());
    }
    Ok(())
}

/// Checks that targets are below `rows` classes: for whoever moves them to a GPU, where operators do not wait to look at them.
///
/// # Errors
/// Names the first that is neither [`IGNORED`] nor a class.
pub fn check_targets(targets: &[i64], rows: usize) -> Result<()> {
    let is_class = |target: i64| usize::try_from(target).is_ok_and(|row| row < rows);
    let fits = |target: &i64| *target == IGNORED || is_class(*target);
    match targets.iter().enumerate().find(|(_, target)| !fits(target)) {
        None => Ok(()),
        Some((index, target)) => bail!(
            "linear-cross-entropy: found target {target} at index {index}, expected {IGNORED} or one \
             from 0 to {}",
            rows.saturating_sub(1)
        ),
    }
}
