//! Stand-ins for tensors of a GPU in a program that was built without CUDA: they never exist.

use std::convert::Infallible;
use std::ffi::c_void;

use candle_core::{DType, Device, Result, Shape, Tensor};

/// A tensor of a GPU that is being sent.
pub struct Outgoing(Infallible);

impl Outgoing {
    /// `None`: without CUDA no tensor is on a GPU.
    pub(crate) fn begin(_: &Tensor) -> Result<Option<Outgoing>> {
        Ok(None)
    }

    pub(crate) fn is_ready(&mut self) -> Result<bool> {
        match self.0 {}
    }

    pub(crate) fn wait(&self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn place(&self) -> (*const c_void, usize) {
        match self.0 {}
    }
}

/// A buffer for elements that are copied to a GPU.
pub(crate) struct Incoming(Infallible);

impl Incoming {
    /// `None`: without CUDA no device is a GPU.
    pub(crate) fn room(_: DType, _: usize, _: &Device) -> Option<Incoming> {
        None
    }

    pub(crate) fn place(&mut self) -> (*mut c_void, usize) {
        match self.0 {}
    }

    pub(crate) unsafe fn arrived(&mut self) {
        match self.0 {}
    }

    pub(crate) fn tensor(self, _: Shape) -> Result<Tensor> {
        match self.0 {}
    }
}
