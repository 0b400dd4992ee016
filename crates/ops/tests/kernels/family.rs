//! The kernels under test, by generation, type and head dimension.

use std::sync::Arc;

use annulus_ops::gpu::attention::{Kernels, Variant, fast_heads, plain_loops};
use annulus_ops::gpu::{Generation, GpuCapability, Processor, with_shared_memory};
use candle_core::DType;

use crate::support::{asked, processor};

/// What a block of threads has on sm_86, sm_89 and sm_120.
const SMALL: u32 = 99 << 10;

/// Kernels, and the most shared memory they are to take.
#[derive(Clone, Copy)]
pub(crate) struct Family {
    pub(crate) variant: Variant,
    shared: Option<u32>,
}

/// All that were asked for; those that are others where there is less shared memory twice.
pub(crate) fn families() -> Vec<Family> {
    let of = |variant: Variant| {
        let others = variant.generation == Generation::Sm80 && variant.dim > 64;
        let small = others.then_some(Some(SMALL));
        std::iter::once(None).chain(small).map(move |shared| Family { variant, shared })
    };
    let all = Kernels::variants().into_iter().flat_map(of);
    all.filter(|family| asked(&family.named())).collect()
}

impl Family {
    /// As kernels are named: `sm90_bf16_d128`, `sm80_bf16_d128_small`.
    pub(crate) fn named(self) -> String {
        let Variant { generation, dtype, dim } = self.variant;
        let small = if self.shared.is_some() { "_small" } else { "" };
        format!("{generation:?}_{dtype:?}_d{dim}{small}").to_lowercase()
    }

    pub(crate) fn kernels(self, processor: Arc<dyn Processor>, deterministic: bool) -> Kernels {
        let generation = Some(self.variant.generation);
        let processor = match self.shared {
            Some(most) => with_shared_memory(processor, most),
            None => processor,
        };
        Kernels { processor, generation, deterministic }
    }
}

/// What is measured is called by the kernels that run, not by those that were asked for.
#[test]
fn heads_without_a_kernel_of_a_generation_take_a_lower_one() {
    use Generation::{Reference, Sm80, Sm100};
    let Some(processor) = processor(Sm100, 1) else { return };
    let cases = [(Sm100, 128, Sm100), (Sm100, 256, Sm80), (Sm80, 128, Sm80), (Sm80, 20, Reference)];
    for (asked, dim, wanted) in cases {
        for deterministic in [false, true] {
            let generation = Some(asked);
            let kernels = Kernels { processor: processor.clone(), generation, deterministic };
            let found = kernels.generations(DType::BF16, dim).unwrap();
            assert_eq!(found, [wanted; 2], "{asked:?} {dim} {deterministic}");
        }
    }
}

#[test]
fn what_takes_plain_loops_is_said() {
    let ample = GpuCapability { architecture: 80, shared: 163 << 10 };
    let said = |dtype, dim| plain_loops(ample, dtype, dim);
    assert_eq!(said(DType::BF16, 20), ["forward", "backward"]);
    assert_eq!(said(DType::F32, 48), ["forward", "backward"]);
    assert!(said(DType::BF16, 48).is_empty() && said(DType::F32, 64).is_empty());
    assert_eq!(said(DType::BF16, 264), ["forward", "backward"]);
    assert_eq!(fast_heads(ample, DType::F32), [64, 80, 96, 128, 256]);
    let small = GpuCapability { architecture: 89, shared: SMALL };
    assert_eq!(fast_heads(small, DType::F32), [64]);
    for dtype in [DType::BF16, DType::F16] {
        assert_eq!(fast_heads(small, dtype), [64, 80, 96, 128, 256]);
    }
}
