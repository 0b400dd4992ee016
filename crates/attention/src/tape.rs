//! Puts attention by a schedule on Candle's tape.
//!
//! Candle calls a backward function of our own only for custom ops. So the forward schedule runs on detached tensors, and then a custom op
//! is recorded whose forward returns the finished output and whose backward runs the backward schedule.

use std::sync::Arc;

use annulus_ops::attention::Attended;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Storage, Tensor, bail};

use crate::{Attention, CallSite, Qkv};

impl Attention {
    /// Attention as an operator on Candle's tape, through which a later `backward()` runs: [B, Hq, S, D]. Every rank must call it in the
    /// same order.
    ///
    /// # Errors
    /// As [`Attention::forward`]; tensors on the tape where a token is added to a cache, which has no backward pass.
    pub fn attend(self: &Arc<Self>, site: CallSite, qkv: &Qkv) -> Result<Tensor> {
        let tracked = [&qkv.q, &qkv.k, &qkv.v].iter().any(|tensor| tensor.track_op());
        if tracked {
            self.check_backward()?;
        }
        let done = self.forward(site, &detached(&qkv.q, &qkv.k, &qkv.v))?;
        if !tracked {
            return Ok(done.out);
        }
        qkv.q.apply_op3(&qkv.k, &qkv.v, Attend { attention: self.clone(), site, done })
    }
}

fn detached(q: &Tensor, k: &Tensor, v: &Tensor) -> Qkv {
    Qkv { q: q.detach(), k: k.detach(), v: v.detach() }
}

struct Attend {
    attention: Arc<Attention>,
    site: CallSite,
    done: Attended,
}

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        "attend"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let out = self.done.out.contiguous()?;
        let (storage, layout) = out.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) if layout.start_offset() == 0 && layout.is_contiguous() => {
                Ok((storage.clone(), layout.shape().clone()))
            }
            _ => bail!("attend: the kernel's output is not a tensor of its own on the CPU"),
        }
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.detach().contiguous()?;
        let Qkv { q, k, v } =
            self.attention.backward(self.site, detached(q, k, v), self.done.clone(), gradient)?;
        Ok((Some(q), Some(k), Some(v)))
    }
}
