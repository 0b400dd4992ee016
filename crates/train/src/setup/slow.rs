//! What a GPU has no fast kernels for: said when a run starts, in its plan, and for every GPU of a machine.

use annulus_experiment::Kernel;
use annulus_ops::gpu::GpuCapability;
use annulus_ops::gpu::attention::{fast_heads, plain_loops};
use annulus_plan::Plan;
use candle_core::DType;

use crate::setup::assemble::Setup;
use crate::setup::device;

/// The warning for order-free sums on a GPU.
const STRICT: &str = "`reproducible: strict` takes ordinary multiply-adds for attention on this GPU, many times slower than its tensor \
                      cores";

/// The warning for f32 on a GPU.
const F32: &str =
    "`model.dtype: f32` uses no tensor cores on this GPU; `bf16` does, and is many times faster";

impl Setup {
    /// The warning if ranks of one process compute on several GPUs.
    pub(crate) fn warning_of_several(&self) -> Option<String> {
        let devices = self.processors.devices();
        (devices > 1 && self.device().is_cuda()).then(|| {
            format!(
                "{devices} GPUs in one process have only been tested on emulated ones: compare the losses of a few steps with those of \
                 `device=cuda:0`"
            )
        })
    }

    /// The warning if the GPU that this runs on has no fast kernels for its sums, its dtype or its head dimension.
    pub(crate) fn warning(&self) -> Option<String> {
        self.warning_on(GpuCapability::of(&**self.processors.first()?))
    }

    fn warning_on(&self, on: GpuCapability) -> Option<String> {
        if self.block.is_some() {
            return Some(STRICT.to_owned());
        }
        let (dim, dtype) = (self.config.shape.head_dim, self.config.dtype);
        let passes = plain_loops(on, dtype, dim);
        if self.kernel != Kernel::Reference && !passes.is_empty() {
            let heads = format!("heads of {dim} in {dtype:?} ({})", passes.join(" and "));
            return Some(said(&heads, on));
        }
        (dtype == DType::F32).then(|| F32.to_owned())
    }
}

/// The warning that a run of `plan` would give about the GPU that it would take here: what is slow on it.
pub fn slow_warning(plan: &Plan) -> Option<String> {
    let gpu = device::gpu(&plan.experiment.device)?;
    Setup::new(plan, 1).warning_on(gpu.capability())
}

/// The warning about head dimensions without fast kernels, for no experiment in particular.
pub(crate) fn of_some_heads(on: GpuCapability) -> String {
    said("some heads", on)
}

/// Says which heads take plain loops, what that costs, and which heads do not.
fn said(which: &str, on: GpuCapability) -> String {
    let longest = fast_heads(on, DType::BF16).into_iter().max().unwrap_or(0);
    let exact: Vec<String> = fast_heads(on, DType::F32).iter().map(usize::to_string).collect();
    format!(
        "attention takes plain loops for {which} on this GPU, up to 100 times slower: it has fast kernels for bf16 and f16 heads of a \
         multiple of 8 up to {longest}, and for f32 heads of {}",
        exact.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slow_is_said_with_what_it_costs_and_what_is_not() {
        let found = of_some_heads(GpuCapability { architecture: 89, shared: 99 << 10 });
        assert!(found.starts_with(
            "attention takes plain loops for some heads on this GPU, up to 100 times slower"
        ));
        assert!(
            found.ends_with("of a multiple of 8 up to 256, and for f32 heads of 64"),
            "{found}"
        );
        let found = of_some_heads(GpuCapability { architecture: 90, shared: 227 << 10 });
        assert!(found.ends_with("f32 heads of 64, 80, 96, 128, 256"), "{found}");
    }
}
