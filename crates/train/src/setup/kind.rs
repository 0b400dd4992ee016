//! What computes in a process, as far as the bits of its results depend on it.

use std::sync::Arc;

use annulus_ops::gpu::{Generation, Processor};

use crate::setup::assemble::{Setup, gpu_kernels};
use crate::{Result, TrainError};

impl Setup {
    /// What computes here: the CPU, or GPUs of one kind with the kernels that attention takes on them. With as many multiprocessors:
    /// cuBLAS has equal bits on such alone.
    ///
    /// # Errors
    /// GPUs of several kinds: results would depend on which rank computes on which.
    pub(crate) fn computes_on(&self) -> Result<String> {
        let all = self.processors.iter().map(|processor| self.kind_of(processor));
        let all = all.collect::<Result<Vec<String>>>()?;
        let Some(first) = all.first() else { return Ok("the CPU".to_owned()) };
        match all.iter().find(|other| *other != first) {
            None => Ok(first.clone()),
            Some(other) => Err(TrainError::configuration(
                format!(
                    "the GPUs of this process differ: found `{first}` and `{other}`, expected one kind"
                ),
                "name GPUs of one kind, as `device: cuda:0,1`",
            )),
        }
    }

    fn kind_of(&self, processor: &Arc<dyn Processor>) -> Result<String> {
        let gpu = format!("a GPU of sm_{}", processor.architecture());
        if self.block.is_some() {
            // There is one generation of kernels for order-free sums.
            return Ok(gpu);
        }
        let gpu = format!("{gpu} with {} multiprocessors", processor.multiprocessors());
        let kernels = gpu_kernels(self.kernel, self.deterministic, self.dropout, processor);
        let (dtype, dim) = (self.config.dtype, self.config.shape.head_dim);
        let mut words = kernels.generations(dtype, dim)?.map(Generation::word).to_vec();
        words.dedup();
        Ok(format!("{gpu}, kernels of {}", words.join(" and ")))
    }
}
