//! The GPU that a step runs on, as its lines have it.

use candle_core::{Device, DeviceLocation};
use serde_json::json;

use crate::subject::{Fields, fields};

/// The device, with a GPU's name, as fields.
pub(crate) fn describe(device: &Device) -> Fields {
    let DeviceLocation::Cuda { gpu_id } = device.location() else {
        return fields(json!({ "device": "cpu" }));
    };
    let mut line = fields(json!({ "device": format!("cuda:{gpu_id}") }));
    let gpus = annulus_ops::gpu::gpus().unwrap_or_default();
    line.extend(gpus.get(gpu_id).map(|gpu| ("gpu".to_owned(), json!(gpu.name))));
    line
}

/// Used memory of a GPU as fields. Memory that a program frees stays with it, so this is the most that it ever held, if no other program is
/// there.
pub(crate) fn memory(device: &Device) -> Fields {
    let taken = taken(device).map(|bytes| (bytes as f64 / f64::from(1 << 20)).round());
    Fields::from_iter(taken.map(|mebibytes| ("gpu_mib".to_owned(), json!(mebibytes))))
}

#[cfg(feature = "cuda")]
fn taken(device: &Device) -> Option<usize> {
    use candle_core::cuda_backend::cudarc::driver::result::mem_get_info;

    let Device::Cuda(device) = device else { return None };
    device.cuda_stream().context().bind_to_thread().ok()?;
    let (free, all) = mem_get_info().ok()?;
    Some(all - free)
}

#[cfg(not(feature = "cuda"))]
fn taken(_: &Device) -> Option<usize> {
    None
}
