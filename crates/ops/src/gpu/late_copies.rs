//! Copies of emulated processors to the host and back, each as late as a GPU may make it: what is wrong with the order changes bits.

use candle_core::{Result, Tensor};

use super::Processor;
use super::emulator::Emulator;
use super::host_copies::{HostCopies, HostCopy};

/// The copies of an emulated processor.
#[derive(Debug)]
pub(super) struct LateCopies(pub(super) Emulator);

#[derive(Debug)]
struct LateCopy {
    processor: Emulator,
    /// The tensor until it is released.
    source: Option<Tensor>,
    /// What of it is on the host.
    away: Option<Tensor>,
}

impl HostCopies for LateCopies {
    fn begin(&self, tensor: Tensor) -> Result<Box<dyn HostCopy>> {
        self.0.touches(&[&tensor], &[])?;
        Ok(Box::new(LateCopy { processor: self.0.clone(), source: Some(tensor), away: None }))
    }
}

impl HostCopy for LateCopy {
    fn release(&mut self) -> Result<()> {
        if let Some(source) = self.source.take() {
            self.away = Some(source.force_contiguous()?.detach());
        }
        Ok(())
    }

    fn prefetch(&mut self) -> Result<()> {
        Ok(())
    }

    fn restore(&mut self) -> Result<Tensor> {
        if let Some(source) = &self.source {
            return Ok(source.clone());
        }
        let away = self.away.as_ref();
        let away = away.ok_or_else(|| candle_core::Error::Msg("a tensor is nowhere".to_owned()))?;
        let back = away.copy()?;
        self.processor.touches(&[], &[&back])?;
        Ok(back)
    }
}
